"""`python -m deepclust` is `deepclust`."""

from deepclust.cli import main

main()
