"""Learned methods: features of a problem, networks over it, training; then one file per paper."""

# policy -> module of this package that has its Settings and train(settings)
TRAINERS = {
    "regal": "regal_training",
    "gas": "regal_training",
    "go": "go_training",
    "placeto": "placeto_training",
    "rnn": "placer_training",
    "hdp": "placer_training",
}
