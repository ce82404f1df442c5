"""Published learned methods, one file per paper, and what these files share. Needs torch, except `methods`.

| file | paper |
|---|---|
| `mirhoseini2017` | Device Placement Optimization with Reinforcement Learning, arXiv 1706.04972 |
| `hdp2018` | A Hierarchical Model for Device Placement, ICLR 2018 |
| `placeto2019` | Placeto: Learning Generalizable Device Placement Algorithms, arXiv 1906.08879 |
| `regal2020` | REGAL: Transfer Learning for Fast Optimization of Computation Graphs, arXiv 1905.02494 |
| `go2020` | Transferable Graph Optimizers for ML Compilers, arXiv 2010.12438 |

`methods` has the settings of each method; `optimize` there opens the paper's file. Shared: `environment` (the simulator
judges placements of groups), `grouped` and `features` (what networks read), `decoding` (from decisions for groups to
plans), `controls` (policies that read nothing), `training`, `weights` and `adam`.
`explaining` says which features moved a decision, and tests it.
"""

# policy -> module that has its SETTINGS and train(settings)
TRAINERS = {
    "regal": "loadmaster.papers.regal2020",
    "gas": "loadmaster.papers.regal2020",
    "go": "loadmaster.papers.go2020_training",
    "placeto": "loadmaster.papers.placeto2019",
    "plans": "loadmaster.methods.experience.collecting",
}
