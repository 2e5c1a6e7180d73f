"""EDL: elastic deep learning. Import a plug-in (`import edl.torch as edl`) or `edl.client`."""

__version__ = "0.1.0"
