"""python -m loadmaster, torchrun -m loadmaster, and the command `loadmaster`."""

import io
import sys


def main() -> None:
    """The command line; one that is interrupted before it has begun ends as quietly as later."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may lack a character
    try:
        from loadmaster.cli.verbs import main as run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
