"""Values of inputs that decide what a model runs: asked again of every batch, and refused where the answer is another.

A mask that is left out if all of it is one, a count of tokens that must match: the capture has the ops that follow from
the answers of its example inputs. The same calls give the answers for a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from loadmaster.errors import CannotRun
from loadmaster.importers.torch.step import Trace
from loadmaster.importers.torch.values import Question, ValueMode


def refuse_truths(trace: Trace) -> None:
    """A share of a batch may have other truths than the whole, and processes would have to agree on them."""
    if trace.truths:
        what = "the model asks whether something holds of its tensors, which only a whole step in one process can tell"
        raise CannotRun(what, trace.truths[0][1], "use torch.where or masks in place of if")


class Answers:
    """What forward and backward asked of the inputs.

    Attributes:
        names: fake tensor, by id -> the input that it stands for.
    """

    def __init__(self, mode: ValueMode, questions: Sequence[Question], names: Mapping[int, str]) -> None:
        self.mode, self.questions = mode, questions
        self.names = {id(fake): names[id(fake)] for question in questions for fake in question.given}
        self._accepted: dict[str, Tensor] = {}

    def check(self, batch: Mapping[str, Tensor]) -> None:
        """CannotRun where this batch, by name, would run other ops."""
        given = {fake: batch[name] for fake, name in self.names.items()}
        own = {name: batch[name].detach().cpu() for name in self.names.values()}
        if self._accepted and all(torch.equal(own[name], value) for name, value in self._accepted.items()):
            return
        for question in self.questions:
            if not question.same_for(given, self.mode.known):
                names = ", ".join(dict.fromkeys(self.names[id(fake)] for fake in question.given))
                what = f"values of {names} decide what the model runs, and for this batch it would run other ops"
                fix = "plan and apply with such a batch as example inputs, or use torch.where or masks in place of if"
                raise CannotRun(what, question.line, fix)
        self._accepted = {name: value.clone() for name, value in own.items()}
