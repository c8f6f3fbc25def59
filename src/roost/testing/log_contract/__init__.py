"""The contract of a log: subclass, give the fixture, inherit the tests.

    class TestSqliteLog(LogContract):
        @pytest.fixture
        async def store(self, tmp_path): ...    # an empty store, open while the test runs

What belongs to one leg of a message's path is one file here.
"""

from __future__ import annotations

from roost.testing.log_contract.claiming import Claiming
from roost.testing.log_contract.forking import Forking
from roost.testing.log_contract.intake import AcceptedInputs
from roost.testing.log_contract.length import Length
from roost.testing.log_contract.races import Races
from roost.testing.log_contract.reading import Reading
from roost.testing.log_contract.receipts import Receipts
from roost.testing.log_contract.running import Running
from roost.testing.log_contract.standby import StandingBy
from roost.testing.log_contract.withdrawing import Withdrawing

__all__ = ["LogContract"]


class LogContract(
    AcceptedInputs,
    Withdrawing,
    StandingBy,
    Receipts,
    Claiming,
    Running,
    Reading,
    Races,
    Length,
    Forking,
):
    """What the core relies on, whichever database is behind it."""
