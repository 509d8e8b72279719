"""The command line as `python -m memcore`, where no command is on the path."""

from memcore.cli import main

if __name__ == "__main__":
    main(prog_name="memcore")
