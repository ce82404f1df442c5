"""Mistakes that once went unseen by every test; `mutants.py --named` makes them again, one at a time."""

from __future__ import annotations

from typing import NamedTuple


class Mistake(NamedTuple):
    """Lines of a file under src/loadmaster, and what they are changed to."""

    name: str
    file: str
    right: str
    wrong: str


NAMED = [
    Mistake(
        "annealing: loads are not undone after a rejected move",
        "optimizers/annealing/moves/place.py",
        "        load[home] += op_ns[op * devices + home]\n",
        "",
    ),
    Mistake(
        "annealing: tails are not undone after a rejected move",
        "optimizers/annealing/moves/place.py",
        "        copy(scratch.old_tail, 0, top + 1, scratch.tail)\n",
        "        pass\n",
    ),
    Mistake(
        "annealing: the temperature is ignored",
        "optimizers/annealing/acceptance.py",
        "    return -np.log(unit(state)) * temperature",
        "    return -np.log(unit(state)) * 0.0",
    ),
    Mistake(
        "annealing: it does not cool",
        "optimizers/annealing/engine.py",
        "    return cooled(habits.hot, habits.cold, share)\n",
        "    return habits.hot\n",
    ),
    Mistake(
        "solve: the worse of what was returned and what was scored is reported",
        "search/solving.py",
        "    return (plan if score <= search.best_score else search.best), False\n",
        "    return (plan if score >= search.best_score else search.best), False\n",
    ),
    Mistake(
        "progress: of the limit that is further away",
        "search/search.py",
        "        return min(1.0, max(by_count, self.seconds / self._last_second))\n",
        "        return min(1.0, min(by_count, self.seconds / self._last_second))\n",
    ),
    Mistake(
        "part: random numbers of its own",
        "search/search.py",
        "        child.rng = self.rng\n",
        "",
    ),
    Mistake(
        "list schedulers: an op's own pending sends do not delay each other",
        "optimizers/lists/steps.py",
        "                added[channel] = known - channel_free[channel]\n",
        "                added[channel] = 0\n",
    ),
    Mistake(
        "list schedulers: a gap as long as the op does not hold it",
        "optimizers/lists/steps.py",
        "        if busy_from[low] - begin >= time:\n",
        "        if busy_from[low] - begin > time:\n",
    ),
    Mistake(
        "REGAL: ops of a block count alike",
        "learn/regal2020/optimizer.py",
        "levels * weight[:, None])\n    size = np.bincount(decoder.block_of, weight,",
        "levels)\n    size = np.bincount(decoder.block_of, None,",
    ),
    Mistake(
        "REGAL: the elite bias is the same everywhere",
        "learn/regal2020/optimizer.py",
        "    bias[ranks][: problem.num_ops] = elite[action.bias]\n",
        "",
    ),
    Mistake(
        "REGAL: chances are not tilted",
        "learn/regal2020/optimizer.py",
        "(chance + shift * tilt)",
        "(chance + 0 * tilt)",
    ),
    Mistake(
        "REGAL: the prior is around another device than the plan's",
        "learn/regal2020/optimizer.py",
        "    mean[np.arange(count), plan.device] = NEAR_MEAN\n",
        "    mean[np.arange(count), plan.device - 1] = NEAR_MEAN\n",
    ),
    Mistake(
        "fused kernels: the tie of the last op, not of the first (rule 12)",
        "simulator/contraction.py",
        "        tie[head] = min(tie[head], old_tie[op])\n",
        "        tie[head] = max(tie[head], old_tie[op])\n",
    ),
    Mistake(
        "fused kernels: no tie order at all",
        "passes/fusing.py",
        "        tie=_lowest(problem.tie, member_of, count),\n",
        "        tie=ints(np.arange(count)),\n",
    ),
    Mistake(
        "times of moving: not repaired where the product is not exact",
        "problem/problem.py",
        "    traffic_ns += (left > 0).astype(np.int64) - (left <= -rate)\n",
        "",
    ),
    Mistake(
        "times of moving: not repaired in the compiled loop",
        "simulator/contraction.py",
        "    if left > 0:\n        return ns + 1\n    return ns - 1 if left <= -rate else ns\n",
        "    return ns\n",
    ),
    Mistake(
        "bound of fused plans: no launch",
        "problem/bounds/step.py",
        "    return span + (saving_of(problem, fusing).least_launch_ns if fusing else 0)\n",
        "    return span\n",
    ),
    Mistake(
        "bound of fused plans: a launch that may be saved",
        "problem/bounds/kernels.py",
        "        return int(self.problem.launches[self.problem.op_ns != CANNOT].min())\n",
        "        return int(self.problem.launch_ns.min())\n",
    ),
    Mistake(
        "simulate_fused: the wrong row is blamed",
        "simulator/rules.py",
        "kernels[step.argmin() if len(kernels) > 1 else 0]",
        "kernels[0]",
    ),
    Mistake(
        "ONNX: attention does not look at the past",
        "importers/onnx/flops.py",
        "    context = key[-2] + past\n",
        "    context = key[-2]\n",
    ),
    Mistake(
        "torch: what is overwritten counts as read",
        "importers/torch/traffic.py",
        "        sizes[_UNREAD[name]] = 0\n",
        "        pass\n",
    ),
    Mistake(
        "torch: another tensor counts as unread",
        "importers/torch/traffic.py",
        "        sizes[_UNREAD[name]] = 0\n",
        "        sizes[0] = 0\n",
    ),
    Mistake(
        "rolling: what a way wrote is not taken back",
        "optimizers/lists/rolling.py",
        "        elif column == HOME_OF:\n            state.home_of[at] = was\n",
        "        elif column == HOME_OF:\n            pass\n",
    ),
]
