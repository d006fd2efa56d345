"""No field of a tier is without a test that it is enforced: docs/limits.md names one for each."""

import re
from pathlib import Path

from appliance.domain.slas.decisions import SLA_FIELDS

REPOSITORY = Path(__file__).parents[2]
PROOF = re.compile(r"^\| `(\w+)` \| `([\w/.]+)::(\w+)` \|$", re.MULTILINE)


def test_every_field_of_a_tier_is_described_and_has_a_test_that_exists():
    text = (REPOSITORY / "docs" / "limits.md").read_text()
    proofs = PROOF.findall(text)
    assert [field for field, _, _ in proofs] == list(SLA_FIELDS)
    missing = [f"{path}::{test}" for _, path, test in proofs if f"def {test}(" not in (REPOSITORY / path).read_text()]
    assert missing == []
    described = text.partition("## Proof")[0]
    assert [field for field in SLA_FIELDS if f"`{field}`" not in described] == []
