"""How the answer to a query is printed. Apart, so that the command line knows the choices before it loads a lake."""

from enum import Enum


class AnswerFormat(Enum):
    """How an answer is printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
