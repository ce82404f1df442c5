"""Experience: plans found before as starts for new problems. `likeness` finds the ops of one graph in another,
`adapting` makes a plan of one problem a plan of another, `known` is what is kept of a plan, `store` keeps many, and
`given` reads one from a plan file."""

from loadmaster.experience.adapting import adapt
from loadmaster.experience.given import starts_from
from loadmaster.experience.known import Known
from loadmaster.experience.store import Store

__all__ = ["Known", "Store", "adapt", "starts_from"]
