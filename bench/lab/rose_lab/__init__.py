"""The laboratory of rose: experiments on one device, simulators, and their reports."""

__version__ = "0.1.0"
