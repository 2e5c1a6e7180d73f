"""The group port's fillings. torch.distributed is imported only when a group is built."""

__all__: list[str] = []
