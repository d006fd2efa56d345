"""Opens a request: everything that may refuse it happens here, before the answer's first byte."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import structlog

from appliance.domain.access.directory import Directory
from appliance.domain.access.principal import Principal
from appliance.domain.admission.decisions import rate_headers
from appliance.domain.admission.prediction import Ask
from appliance.domain.admission.service import Admission
from appliance.domain.inference.answers import ModelAnswer, TokenizeAnswer
from appliance.domain.inference.backend import Backend, Served
from appliance.domain.inference.backpressure import Patience
from appliance.domain.inference.body_bounds import refuse_crowded_body
from appliance.domain.inference.call import Call, Stamps
from appliance.domain.inference.choice import Choice
from appliance.domain.inference.doorstep import Doorstep
from appliance.domain.inference.exchange import Exchange
from appliance.domain.inference.facts import JobFacts, engine_gone
from appliance.domain.inference.formats import Head
from appliance.domain.inference.intake import AnyRoute, Intake, Terms, prompt_texts, read_messages, read_text
from appliance.domain.inference.job import Job
from appliance.domain.inference.output_caps import cap_of, task_of, told_as_tenants
from appliance.domain.inference.parameters import SEED_MASK, deadline_ms_of
from appliance.domain.inference.refusal import refusal_report
from appliance.domain.inference.schemas import SamplingFields, TokenizeRequest, decode_request
from appliance.domain.lanes.decisions import LaneRules, Proposal, Wish, propose_lane, served_tier
from appliance.domain.peers.decisions import WHOLE, Share, with_share
from appliance.errors import Forbidden, Invalid, NotFound
from appliance.telemetry.hub import Telemetry
from appliance.telemetry.requests import RequestReport
from appliance.text.model import TextModel
from appliance.text.turns import TextTurns
from engine.errors import EngineGone
from engine.wire import Sampling, Submit, TenantPolicy

log = structlog.get_logger(__name__)

NO_LANE = "none"
"""Lane label of a request that was refused before a lane was proposed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The times a request is stamped with."""

    monotonic_ns: Callable[[], int]
    wall_s: Callable[[], float]


class InferenceService:
    """The serving half's front door."""

    def __init__(
        self,
        directory: Directory,
        admission: Admission,
        backend: Backend,
        telemetry: Telemetry,
        clocks: Clocks,
        rng: random.Random,
        patience: Patience,
        doorstep: Doorstep,
        lane_rules: LaneRules = LaneRules(),  # noqa: B008 (frozen)
        share: Callable[[str], Share] = lambda _tenant_id: WHOLE,
        *,
        logs_prompts: bool = False,
    ) -> None:
        """`logs_prompts`: the log line of a submitted request holds the text of its prompts."""
        self._directory = directory
        self._admission = admission
        self._backend = backend
        self._telemetry = telemetry
        self._clocks = clocks
        self._rng = rng
        self._share = share
        self._lane_rules = lane_rules
        self._patience = patience
        self.doorstep = doorstep
        self._logs_prompts = logs_prompts
        self._turns = TextTurns()

    async def open(self, call: Call, route: AnyRoute) -> Exchange:
        """Admit a request and submit it to the engine; what is returned answers it.

        Raises:
            ApplianceError: it was refused, and counted as such.
            Cancellation: the client went away first, which was counted too.
        """
        principal: Principal | None = None
        proposal: Proposal | None = None
        stamps = Stamps()
        try:
            principal = await self._authenticate(call, stamps)
            principal = with_share(principal, self._share(principal.tenant_id))
            self._admission.gate.require_open()
            served = self._backend.require()
            async with self.doorstep.let_in(principal.tenant_id, call.body_bytes, call.read_body, stamps) as content:
                refuse_crowded_body(content, served.model.card.max_model_len)
                body: SamplingFields = decode_request(content, route.body_type)
                _check_model(body.model, principal, served)
                deadline_ms = deadline_ms_of(body.deadline_ms, call.deadline_header)
                async with self._turns.take(principal.tenant_id, len(content)):
                    intake, too_long = await self._read(call, route, body, principal.policy, served.model)
                stamps.tokenized_ns, stamps.prompt_tokens = self._clocks.monotonic_ns(), intake.prompt_tokens
                proposal = propose_lane(principal.policy, principal.lanes, _wish(body, intake), self._lane_rules)
                served = self._backend.require(proposal.lane)
                choices = _choices(intake, served)
                ticket = self._admission.enter(principal, intake.most_tokens, _ask(principal, proposal, intake))
                ticket.shadowed = ticket.shadowed or too_long
        except BaseException as error:
            self._show_limits(call, principal)
            lane = proposal.lane if proposal else NO_LANE
            self._telemetry.settle(refusal_report(call, route.path, principal, error, lane, stamps, self._clocks.monotonic_ns()))
            raise
        self._show_limits(call, principal)
        facts = JobFacts(
            request_id=call.request_id,
            route=route.path,
            tenant_id=principal.tenant_id,
            lane=proposal.lane,
            streamed=bool(body.stream),
            received_ns=call.received_ns,
            held_ns=stamps.held_ns,
            read_ns=stamps.read_ns,
            tokenized_ns=stamps.tokenized_ns,
            opened_ns=self._clocks.monotonic_ns(),
            outputs_per_prompt=intake.outputs_per_prompt,
            key_id=principal.key_id,
            queue_ttl_s=principal.policy.queue_ttl_s,
            shadow_mode=principal.policy.shadow_mode,
            deadline_ms=deadline_ms,
            ttft_targets_s=principal.policy.ttft_s,
            tpot_targets_s=principal.policy.tpot_s,
            trace=call.trace,
            is_promised=ticket.is_promised,
            engine=served.engine,
        )
        job = Job(
            facts,
            choices,
            ticket,
            served.client,
            on_settled=self._settled,
            gap_observer=lambda lane: self._telemetry.gap_observer(lane, principal.tenant_id),
            clock_ns=self._clocks.monotonic_ns,
        )
        try:
            self._submit(job, intake, principal, served, proposal)
        except BaseException as error:
            if not job.is_settled:
                job.settle(error)  # a fault of ours: no slot and no reservation is lost with it
            raise
        log.debug(
            "submitted",
            tenant=principal.tenant_id,
            lane=proposal.lane,
            prompt_tokens=[len(prompt.token_ids) for prompt in intake.prompts],
            most_tokens=intake.most_tokens,
            **({"prompts": prompt_texts(intake, served.model.tokenizer)} if self._logs_prompts else {}),
        )
        return Exchange(job, intake.make_format(self._head(call, route, served, body, proposal)), self._patience)

    async def tokenize(self, call: Call) -> TokenizeAnswer:
        """Token ids of a prompt or a conversation. Raises as `open`; takes no ticket and is not counted."""
        stamps = Stamps()
        principal = await self._authenticate(call, stamps)
        self._admission.gate.require_open()
        served = self._backend.require()
        async with self.doorstep.let_in(principal.tenant_id, call.body_bytes, call.read_body, stamps, is_bounded=False) as content:
            refuse_crowded_body(content, served.model.card.max_model_len)
            body = decode_request(content, TokenizeRequest)
            _check_model(body.model, principal, served)
            if (body.prompt is None) == (body.messages is None):
                raise Invalid("send either prompt or messages", param="prompt")
            async with self._turns.take(principal.tenant_id, len(content)):
                if body.messages is not None:
                    token_ids = (await read_messages(body.messages, served.model)).token_ids
                else:
                    token_ids = (await read_text("prompt", body.prompt or "", served.model)).token_ids
        texts = [served.model.tokenizer.token_text(token_id) for token_id in token_ids] if body.return_token_strs else None
        return TokenizeAnswer(count=len(token_ids), max_model_len=served.model.card.max_model_len, tokens=token_ids, token_strs=texts)

    async def models(self, raw_key: str | None, tenant_header: str | None) -> list[ModelAnswer]:
        """What the caller may use."""
        async with self.doorstep.check():
            principal = self._directory.authenticate(raw_key, tenant_header)
        await self.doorstep.spend_turn(principal.tenant_id)
        self._admission.gate.require_open()
        served = self._backend.require()
        card = served.model.card
        if principal.models and card.model_id not in principal.models:
            return []
        return [ModelAnswer(id=card.model_id, created=served.loaded_s, max_model_len=card.max_model_len)]

    async def _authenticate(self, call: Call, stamps: Stamps) -> Principal:
        """Who asks. Raises as `Directory.authenticate`."""
        if call.principal is not None:
            return call.principal
        async with self.doorstep.check(stamps):
            if call.flaw is not None:
                raise call.flaw
            return self._directory.authenticate(call.raw_key, call.tenant_header)

    async def _read(self, call: Call, route: AnyRoute, body: SamplingFields, policy: TenantPolicy, model: TextModel) -> tuple[Intake, str]:
        """The checked request within the tenant's longest context and its output cap; in shadow mode within the model's own,
        and the limit that would have refused it."""
        named = task_of(body.task, call.task_header)
        terms = Terms(model, cap_of(policy, named, route.task), named, self._rng.getrandbits(32))
        if policy.max_context_tokens is None:
            return await route.read(body, terms), ""
        card = msgspec.structs.replace(model.card, max_model_len=min(model.card.max_model_len, policy.max_context_tokens))
        narrow = replace(terms, model=replace(model, card=card))
        if not policy.shadow_mode:
            with told_as_tenants(policy, model.card):
                return await route.read(body, narrow), ""
        intake: Intake = await route.read(body, terms)
        try:
            await route.read(body, narrow)
        except Invalid:
            return intake, "too_long"
        return intake, ""

    def _show_limits(self, call: Call, principal: Principal | None) -> None:
        """Put what is left of the caller's limits into the answer's headers."""
        if principal is not None and principal.has_rates:
            headers = rate_headers(self._admission.standings(principal))
            call.answer_headers.extend((name.encode(), value.encode()) for name, value in headers.items())

    def _submit(self, job: Job, intake: Intake, principal: Principal, served: Served, proposal: Proposal) -> None:
        """Hand the job's sequences to the engine; where it is gone the job ends at once."""
        submits: list[Submit] = []
        for choice, sampling in zip(job.choices, _samplings(intake), strict=True):
            first = choice.index - choice.index % intake.outputs_per_prompt
            submit = self._sequence(job, principal, served, choice.prompt.token_ids, sampling, proposal)
            sibling_of = submits[first].sequence_id if first < choice.index else None
            submits.append(msgspec.structs.replace(submit, sibling_of=sibling_of))
            own_tokens = len(submit.prompt) if sibling_of is None else 0
            self._admission.note_submit(submit.sequence_id, submit.lane, principal.policy, own_tokens)
        self._backend.add(job, [submit.sequence_id for submit in submits])
        deadline_ns = job.facts.deadline_ns
        if deadline_ns is not None and self._clocks.monotonic_ns() >= deadline_ns:
            late = job.facts.deadline_error()
            job.settle(late)
            raise late
        try:
            job.submit(submits)
            self._telemetry.engine.note_submit(submits[-1].sequence_id, served.engine)
        except EngineGone as error:
            unavailable = engine_gone(str(error))
            job.settle(unavailable)
            raise unavailable from error

    def _sequence(
        self, job: Job, principal: Principal, served: Served, prompt: tuple[int, ...], sampling: Sampling, proposal: Proposal
    ) -> Submit:
        facts = job.facts
        target_s = principal.policy.ttft_s.get(proposal.lane)
        return Submit(
            sequence_id=served.client.next_sequence_id(),
            request_id=facts.request_id,
            tenant_id=principal.tenant_id,
            lane=proposal.lane,
            salt=principal.cache_salt,
            prompt=prompt,
            sampling=sampling,
            received_ns=facts.received_ns,
            ttft_deadline_ns=facts.received_ns + round(target_s * 1e9) if target_s is not None else 0,
            lane_by_length=proposal.by_length,
            is_promised=facts.is_promised,
        )

    def _head(self, call: Call, route: AnyRoute, served: Served, body: SamplingFields, proposal: Proposal) -> Head:
        return Head(
            body_id=route.id_prefix + call.request_id,
            created_s=int(self._clocks.wall_s()),
            model=served.model.card.model_id,
            fingerprint=served.fingerprint,
            service_tier=served_tier(body.service_tier, proposal.lane) if body.service_tier else msgspec.UNSET,
        )

    def _settled(self, job: Job, report: RequestReport) -> None:
        self._backend.remove(job)
        if report.first_token_ns:
            self._admission.note_prompt(report.tenant_id, report.prompt_tokens, report.cached_tokens)
        self._telemetry.settle(report)


def _check_model(name: str | None, principal: Principal, served: Served) -> None:
    """Raises `NotFound` for a model that is not served, `Forbidden` for one that the key may not use."""
    model_id = served.model.card.model_id
    if name is not None and name != model_id:
        raise NotFound(f"the model {name[:200]!r} does not exist here; this server has {model_id!r}", param="model", code="model_not_found")
    if principal.models and model_id not in principal.models:
        raise Forbidden(f"this key may not use the model {model_id!r}", param="model", code="model_not_allowed")


def _wish(body: SamplingFields, intake: Intake) -> Wish:
    longest = max(len(prompt.token_ids) for prompt in intake.prompts)
    return Wish(streamed=bool(body.stream), prompt_tokens=longest, service_tier=body.service_tier or "auto", lane=body.lane)


def _ask(principal: Principal, proposal: Proposal, intake: Intake) -> Ask:
    prompts = tuple(prompt.token_ids for prompt in intake.prompts)
    return Ask(
        lane=proposal.lane,
        prompt_tokens=intake.prompt_tokens,
        rows=len(prompts) * intake.outputs_per_prompt,
        fingerprint=hash((principal.key_id, proposal.lane, prompts)),
    )


def _choices(intake: Intake, served: Served) -> list[Choice]:
    """Outputs in OpenAI's order: all of the first prompt, then the next prompt's."""
    n, tokenizer = intake.outputs_per_prompt, served.model.tokenizer
    return [
        Choice(
            prompt_index * n + output_index,
            prompt,
            tokenizer,
            ends=intake.ends,
            bound=bound,
            min_tokens=sampling.min_tokens,
            echo=intake.echo,
            scores=intake.scores,
        )
        for prompt_index, (prompt, sampling, bound) in enumerate(zip(intake.prompts, intake.samplings, intake.bounds, strict=True))
        for output_index in range(n)
    ]


def _samplings(intake: Intake) -> list[Sampling]:
    """One for each output: the first of a prompt has the request's seed, the others seeds that follow from it."""
    return [
        msgspec.structs.replace(sampling, seed=(sampling.seed + output_index) & SEED_MASK)
        for sampling in intake.samplings
        for output_index in range(intake.outputs_per_prompt)
    ]
