"""Energy, power and cost: meters, attribution to requests, power settings, prices.

`choose_meter` takes the best meter a device has and says why the better ones are not there;
`docs/energy.md` has the rules.
"""

from infopt.energy.attribution import NJ_PER_J, attribute, flop_model, time_model
from infopt.energy.choose import MeterChoice, MeterName, choose_meter
from infopt.energy.ledger import EnergyLedger
from infopt.energy.meters import EnergyMeter, NoMeter, idle_reading
from infopt.energy.model import EnergyConstants, order_survives
from infopt.energy.reading import EnergyReading, ModelledWork, add_readings
from infopt.energy.run import RunEnergy, measured_run

__all__ = [
    "NJ_PER_J",
    "EnergyConstants",
    "EnergyLedger",
    "EnergyMeter",
    "EnergyReading",
    "MeterChoice",
    "MeterName",
    "ModelledWork",
    "NoMeter",
    "RunEnergy",
    "add_readings",
    "attribute",
    "choose_meter",
    "flop_model",
    "idle_reading",
    "measured_run",
    "order_survives",
    "time_model",
]
