"""Experience: plans found before as starts for new problems. `likeness` finds the ops of one graph in another,
`adapting` makes a plan of one problem a plan of another, `known` is what is kept of a plan, `store` keeps many, and
`given` reads one from a plan file."""

from loadmaster.optimizers.experience.adapting import adapt
from loadmaster.optimizers.experience.given import starts_from
from loadmaster.optimizers.experience.known import Known
from loadmaster.optimizers.experience.store import Store

__all__ = ["Known", "Store", "adapt", "starts_from"]
