"""Learned methods: features of a problem, networks over it, training; then a package for each paper.

Needs torch, which nothing below this room does. `features` is what policies see, `decoding` how their words become
plans, `environment` what judges them; `examples` and `variation` make problems to learn from, `training` and `weights`
keep runs and files. Packages by paper: `mirhoseini2017` and `hdp2018` (on `recurrent`), `placeto2019`, `regal2020`,
`go2020`. `scheduling` trains the weights of `optimizers.policy`, and `plans` keeps long searches as a library. Each
method's docstring says where it differs from its paper.
"""

# policy -> module of this package that has its SETTINGS and train(settings)
TRAINERS = {
    "regal": "regal2020.training",
    "gas": "regal2020.training",
    "go": "go2020.training",
    "placeto": "placeto2019.training",
    "rnn": "recurrent.training",
    "hdp": "recurrent.training",
    "plans": "plans",
    "list": "scheduling.command",
}
