"""What every `SandboxProvider` promises, as tests. Subclass, name a factory, inherit.

    class TestBubblewrap(SandboxContract):
        factory = "tests.contracts.test_bubblewrap:make"

The factory is named, not given, because some promises are about what happens when the process that
holds a sandbox is killed: another process has to make the provider too. Inside there must be `sh`, the
usual small programs, and `python3`.
"""

from roost.testing.sandbox_contract.apart import ApartContract
from roost.testing.sandbox_contract.commands import CommandContract
from roost.testing.sandbox_contract.ends import EndContract
from roost.testing.sandbox_contract.files import FileContract
from roost.testing.sandbox_contract.limits import LimitContract


class SandboxContract(CommandContract, FileContract, EndContract, LimitContract, ApartContract):
    """Every promise of the port."""


__all__ = ["SandboxContract"]
