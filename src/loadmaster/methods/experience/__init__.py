"""Experience: plans found before as starts for new problems. `likeness` finds the ops of one graph in another,
`adapting` makes a plan of one problem a plan of another, `known` is what is kept of a plan, `entries` says of what, and
`store` (the user's own) and `library` (one file, trained) keep many; `collecting` fills a library by long
searches, `choosing` picks the most alike, and `given` reads what the user names."""

from loadmaster.methods.experience.adapting import adapt
from loadmaster.methods.experience.choosing import starts_like
from loadmaster.methods.experience.given import starts_from
from loadmaster.methods.experience.known import Known
from loadmaster.methods.experience.library import Library
from loadmaster.methods.experience.store import Store

__all__ = ["Known", "Library", "Store", "adapt", "starts_from", "starts_like"]
