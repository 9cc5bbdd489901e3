"""The shape of the section `prices` of cluster.yaml: nothing but keys, types and bounds.

Amounts are text in quotes: a number without them is read as a float, which has no exact cents. What they become is
`price_section`'s.
"""

from typing import Annotated, Literal

from pydantic import Field

from ops_pipelines.resources.config.strict_yaml import StrictModel

AmountText = Annotated[str, Field(pattern=r"^[0-9]{1,15}(\.[0-9]{1,9})?$")]
"""In units of the currency, or as the key says; `core.money.read_amount` reads it exactly."""
MonthText = Annotated[str, Field(pattern=r"^(19|20)[0-9]{2}-(0[1-9]|1[0-2])$")]


class AssetPriceModel(StrictModel):
    asset: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """The `model` of racks."""
    priced_by: Literal["node", "gpu"]
    capex: AmountText
    amortized_months: Annotated[int, Field(ge=1, le=600)]
    support_per_month: AmountText = "0"
    paid_since: MonthText | None = None


class PricesModel(StrictModel):
    """The section `prices`. Who states prices states what energy costs: there is no default for it."""

    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
    assets: Annotated[list[AssetPriceModel], Field(min_length=1)]
    per_kwh: AmountText
    pue: AmountText
    per_tib_month: AmountText = "0"
    space_per_month: AmountText = "0"
    support_per_month: AmountText = "0"
    network_per_month: AmountText = "0"
    unmeasured_watts_per_gpu: AmountText | None = None
