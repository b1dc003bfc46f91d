"""``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infopt.engine.constraint import ConstraintFactory
from infopt.serve.chat_output import ChatOutput, OutputForm, join_message
from infopt.serve.deltas import Delta
from infopt.serve.generation import Generation, Prepared
from infopt.serve.logprobs import chat_logprobs
from infopt.serve.protocol import ChatRequest
from infopt.serve.protocol.tools import NamedChoice
from infopt.serve.service import Service
from infopt.serve.tools.forced import any_calls, named_call
from infopt.serve.tools.parsers import PARSERS, ToolParser, parser_for
from infopt.serve.tools.reasoning import AfterReasoning
from infopt.serve.tools.tags import TAGS, Tags, tags_for
from infopt.structured import StructuredOutputError, StructuredSpec


class ChatCompletion(Generation):
    """A request to answer a conversation.

    Args:
        service: Models and loop.
        body: The request.
    """

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    id_prefix = "chatcmpl"

    def __init__(self, service: Service, body: ChatRequest) -> None:
        """Start with no answer begun."""
        super().__init__(service, body)
        self.body = body
        self._choice = body.choice_of_tool
        self._form = OutputForm()
        self._outputs: dict[int, ChatOutput] = {}

    def prepare(self) -> Prepared:
        """Render the conversation with the model's own template and encode it."""
        params = self.body.params()
        prompt = self.model.tokenizer.render_chat_template(
            self.body.template_messages(),
            tools=self._tools_for_template(),
            **(self.body.chat_template_kwargs or {}),
        )
        token_ids = self.model.tokenizer.encode(prompt, add_special_tokens=False)
        self.model.engine.checker.check(token_ids, params)
        self._form = self._form_after(prompt)
        if self._form.make_parser is not None:
            # The markers of some families are special tokens.
            params = params.replace(skip_special_tokens=False)
        return Prepared([token_ids], [params], self._constraint())

    def choice(self, delta: Delta) -> dict[str, Any]:
        """Return a whole answer."""
        output = ChatOutput(self._form)
        message = join_message(output.read(delta.text, is_last=True))
        return {
            "index": delta.index,
            "message": message,
            "logprobs": self._describe(delta),
            "finish_reason": output.finish_reason(delta.finish_reason),
            "stop_reason": delta.stop_reason,
        }

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """Return pieces of an answer; the first of each answer carries the role, once."""
        is_first, is_last = delta.index not in self._outputs, delta.finish_reason is not None
        output = self._outputs.setdefault(delta.index, ChatOutput(self._form))
        messages = output.read(delta.text, is_last=is_last)
        logprobs = self._describe(delta)
        if not messages and (is_first or is_last or logprobs):
            messages = [{}]
        if is_first:
            messages[0] = {"role": "assistant", "content": ""} | messages[0]
        choices: list[dict[str, Any]] = [
            {"index": delta.index, "delta": m, "logprobs": None, "finish_reason": None}
            for m in messages
        ]
        if choices:
            choices[0]["logprobs"] = logprobs
        if is_last:
            reason = output.finish_reason(delta.finish_reason)
            choices[-1] |= {"finish_reason": reason, "stop_reason": delta.stop_reason}
        return choices

    def _describe(self, delta: Delta) -> dict[str, Any] | None:
        if delta.logprobs is None or not delta.token_ids:
            return None
        return chat_logprobs(delta.token_ids, delta.logprobs, self.body.top_logprobs or 0)

    # ---------------------------------------------------------------- tools and reasoning

    def _tools_for_template(self) -> list[dict[str, Any]] | None:
        """Return the tools; with ``tool_choice`` none the model does not even hear of them."""
        if self._choice == "none":
            return None
        return [tool.model_dump(exclude_none=True) for tool in self.body.tools or ()]

    def _form_after(self, prompt: str) -> OutputForm:
        tags = self._tags()
        named = self._choice.function.name if isinstance(self._choice, NamedChoice) else None
        make_parser = None
        if self._choice in ("auto", "required"):
            forced = self._choice == "required"
            make_parser = PARSERS.get("generic") if forced else self._parser()
        return OutputForm(
            reasoning_is_open=None if tags is None else prompt.rstrip().endswith(tags.begin),
            tags=tags or TAGS["think"],
            make_parser=make_parser,
            forced_name=named,
            max_calls=1 if self.body.parallel_tool_calls is False else None,
        )

    def _tags(self) -> Tags | None:
        """Return what stands around reasoning; None if it is not to be split off."""
        chosen = self.service.config.reasoning_parser
        if self.body.include_reasoning is False or chosen == "none":
            return None
        return tags_for(self.model.tokenizer.chat_template) if chosen is None else TAGS[chosen]

    def _parser(self) -> Callable[[], ToolParser] | None:
        """Return what finds calls that the model chose to make; None if nothing is to."""
        chosen = self.service.config.tool_parser
        if chosen == "none":
            return None
        return PARSERS.get(chosen or parser_for(self.model.tokenizer.chat_template))

    def _constraint(self) -> ConstraintFactory | None:
        spec = self._spec()
        if spec is None:
            return None
        factory = self.model.compiler.compile(spec)
        if not self._form.reasoning_is_open:
            return factory
        tokenizer, config = self.model.tokenizer, self.model.engine.runner.model.config
        return lambda: AfterReasoning(
            factory(),
            tokenizer.token_bytes,
            config.eos_token_ids,
            tokenizer.vocab_size,
            self._form.tags.end,
        )

    def _spec(self) -> StructuredSpec | None:
        """Return what the output must look like.

        Raises:
            StructuredOutputError: If tools and the form of the answer contradict each other.
        """
        spec = self.body.structured()
        if spec is not None and self._choice != "none":
            raise StructuredOutputError(
                "a form of the answer and tools cannot be asked for together.",
                field="response_format" if self.body.response_format else "structured_outputs",
                remedy='Leave one out, or say tool_choice="none".',
            )
        functions = [tool.function for tool in self.body.tools or ()]
        if isinstance(self._choice, NamedChoice):
            name = self._choice.function.name
            return named_call(next(f.parameters for f in functions if f.name == name))
        if self._choice == "required":
            parallel = self.body.parallel_tool_calls is not False
            return any_calls([(f.name, f.parameters) for f in functions], parallel=parallel)
        return spec
