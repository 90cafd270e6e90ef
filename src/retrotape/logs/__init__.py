"""What a tape shows where people look during training: TensorBoard."""

from retrotape.logs._logged import Logged

__all__ = ["Logged"]
