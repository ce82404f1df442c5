"""Plans on real devices: run them, and measure what they and their ops take.

Two ways to use a plan: `apply` runs it exactly (captured step, its order, its kernels), `placing` only puts modules
where the plan has them; `backend` gives torch.compile the planner's order. What steps and ops take comes back from
`timing`, `measure` and `machine`, `race` sets plans against the defaults, and `recalibrate` keeps what ops took in a
step for the next plan. `verify` proves that an applied step computes what the module does. Needs torch.
"""
