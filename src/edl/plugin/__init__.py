"""What every plug-in is made of: one face, one loader, one way to reduce, move and keep a model.

A plug-in for a framework whose model is a set of named arrays fills `adapter.Adapter` and is
complete; one with other needs, as edl.torch is, takes from here what it can use. Holds: nothing
in this room imports a framework before a group of several workers is built.
"""

__all__: list[str] = []
