"""What the machines behind a database can do together, which is what contracts are compared with."""

from dataclasses import dataclass


@dataclass(slots=True)
class Capacity:
    """Tokens a minute that engines were measured to do; 0: not known. Changed by the event loop only."""

    own_tpm: int = 0
    """This process's, since it first got ready."""
    others_tpm: int = 0
    """Those of the other processes that serve from the database, together."""
    kept_tpm: int = 0
    """As the database has it: what all were measured to do when it was last written, maybe before this start."""

    @property
    def tpm(self) -> int:
        """All of them; as long as nothing was measured, what was kept."""
        return self.own_tpm + self.others_tpm or self.kept_tpm
