"""What can go wrong with a meter; each reason is a word that records and tests can hold on to."""

from __future__ import annotations

from infopt.errors import InfoptError, MeasurementError


class CounterUnreadableError(MeasurementError):
    """A counter cannot be read: absent, not permitted, or not supported by the device."""


class CounterResetError(MeasurementError):
    """A counter went back by more than a wrap-around explains; the window has no energy."""


class CounterStuckError(MeasurementError):
    """A counter did not advance in a window in which it must have."""


class PowerControlError(InfoptError):
    """A power cap or clock could not be set, was not kept, or could not be put back."""


class PowerPermissionError(PowerControlError):
    """The system does not let this user change power settings."""
