"""The routes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from infopt.serve.chat import ChatCompletion
from infopt.serve.completions import Completion
from infopt.serve.generation import Generation
from infopt.serve.json_body import StrictRoute
from infopt.serve.openapi import generating, posting, reading, reading_text
from infopt.serve.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from infopt.serve.protocol.answers import (
    ChatAnswer,
    ChatChunk,
    CompletionAnswer,
    CompletionChunk,
    DetokenizeAnswer,
    Health,
    ModelCard,
    ModelList,
    TokenizeAnswer,
    TokenizerInfo,
)
from infopt.serve.protocol.base import SamplingFields
from infopt.serve.responses import json_response
from infopt.serve.service import AUTO, ServedModel, Service
from infopt.serve.tokenize import describe_tokenizer, detokenize, tokenize

router = APIRouter(route_class=StrictRoute)


def _service(request: Request) -> Service:
    return request.app.state.service


@router.post("/v1/chat/completions", tags=["generate"], responses=generating(ChatAnswer, ChatChunk))
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    return await _answer(ChatCompletion, body, request)


@router.post(
    "/v1/completions", tags=["generate"], responses=generating(CompletionAnswer, CompletionChunk)
)
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Go on with a text, or score it."""
    return await _answer(Completion, body, request)


@router.get("/v1/models", tags=["models"], responses=reading(ModelList))
async def models(request: Request) -> Response:
    """List the models."""
    service = _service(request)
    cards = [_card(model) for model in service.models.values()]
    if service.router is not None:
        cards.append(_auto_card(service))
    return json_response({"object": "list", "data": cards})


@router.get("/v1/models/{name:path}", tags=["models"], responses=reading(ModelCard, 404))
async def model(name: str, request: Request) -> Response:
    """Describe one model."""
    service = _service(request)
    is_auto = name == AUTO and service.router is not None
    return json_response(_auto_card(service) if is_auto else _card(service.model_of(name)))


@router.post("/tokenize", tags=["tokens"], responses=posting(TokenizeAnswer))
async def tokenize_text(body: TokenizeRequest, request: Request) -> Response:
    """Return the ids of a text or a conversation."""
    return json_response(await tokenize(_service(request), body))


@router.post("/detokenize", tags=["tokens"], responses=posting(DetokenizeAnswer))
async def detokenize_ids(body: DetokenizeRequest, request: Request) -> Response:
    """Return the text of ids."""
    return json_response(await detokenize(_service(request), body))


@router.get("/tokenizer_info", tags=["tokens"], responses=reading(TokenizerInfo, 400, 404))
async def tokenizer_info(request: Request, model: str | None = None) -> Response:
    """Return the special tokens and the chat template of a model."""
    return json_response(describe_tokenizer(_service(request), model))


@router.get("/health", tags=["server"], responses=reading(Health) | {503: {"model": Health}})
async def health(request: Request) -> Response:
    """Say whether requests are answered: 200 when ready, else 503."""
    service = _service(request)
    status = 200 if service.state == "ready" else 503
    return json_response({"status": service.state, "models": list(service.models)}, status)


@router.get("/metrics", tags=["server"], response_class=Response, responses=reading_text())
async def metrics(request: Request) -> Response:
    """Return all metrics in Prometheus' text format."""
    registry = _service(request).metrics.registry
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


async def _answer(kind: type[Generation], body: SamplingFields, request: Request) -> Response:
    service = _service(request)
    if service.router is not None and body.model == AUTO:
        return await service.router.respond(kind, body, request)
    return await kind(service, body).respond(request)


def _auto_card(service: Service) -> dict[str, Any]:
    assert service.router is not None
    created = max(model.created for model in service.models.values())
    return {
        "id": AUTO,
        "object": "model",
        "created": created,
        "owned_by": "infopt",
        "max_model_len": service.router.max_model_len,
    }


def _card(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "infopt",
        "max_model_len": model.max_model_len,
    }
