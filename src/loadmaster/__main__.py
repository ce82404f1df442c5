"""python -m loadmaster, and torchrun -m loadmaster."""

from loadmaster.cli.verbs import main

if __name__ == "__main__":
    main()
