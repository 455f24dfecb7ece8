"""Real paths and real faults on one machine, without privileges.

`Emulator` starts a process that carries UDP datagrams between sites over emulated paths;
`EmulatorClient` controls a running one from any process.
"""

from farstep.lab.client import EmulatorClient, EmulatorError
from farstep.lab.emulator import Emulator
from farstep.lab.standalone import run_emulator

__all__ = ["Emulator", "EmulatorClient", "EmulatorError", "run_emulator"]
