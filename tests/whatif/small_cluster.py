"""A small simulated cluster for rollouts, and rollouts on it."""

from dataclasses import replace
from functools import cache

from ops_pipelines.core.policy import Policy
from ops_pipelines_lab.whatif.lifecycle.controller import OurRollout
from ops_pipelines_lab.whatif.lifecycle.scenario import Scenario, Site, policy_of, read_scenarios, read_site
from ops_pipelines_lab.whatif.lifecycle.world import DAY, World

NODE_COUNT = 120
GOOD = Scenario(name="good", is_good=True)


@cache
def small_site() -> Site:
    return read_site(NODE_COUNT)


def world_of(scenario: Scenario = GOOD, *, seed: int = 1, site: Site | None = None) -> World:
    return World(site or small_site(), scenario, seed, gang_cap=4)


def unbounded() -> Policy:
    """Return the bench's policy without bounds on what goes unseen: so few nodes cannot see so much."""
    policy = policy_of(small_site())
    return replace(policy, rollouts=replace(policy.rollouts, bounds=()))


def rolled_out(name: str, *, seed: int = 1, policy: Policy | None = None) -> tuple[World, OurRollout]:
    """Return the world and the rollout after both came to their end."""
    world = world_of(read_scenarios()[name], seed=seed)
    world.play(DAY / 4)
    rollout = OurRollout(world, policy or unbounded())
    world.play(30 * DAY)
    return world, rollout
