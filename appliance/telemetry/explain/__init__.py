"""Why a request took as long as it did: pure functions over its report and the step ledger."""
