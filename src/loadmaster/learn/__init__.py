"""Learned methods: features of a problem, networks over it, training; then a package for each paper."""

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
