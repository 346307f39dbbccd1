"""Run the command line as `python -m endpick`."""

from endpick.cli.process import main

if __name__ == "__main__":
    main()
