"""The plugin API: the only part of endpick that a plugin may import.

Write a class, subclass a kind, name it in an entry point of group `endpick.plugins.v1`. A plugin reads three things: columns of the
endpoint table (`endpoints[KEY]`), the request itself (`request`), and what producers left for it (`state`).

- `plugin`: what does every plugin declare, and what is it given when it is built? Start here: `Plugin`.
- `scheduling`: which methods do filters, scorers, pickers, profile handlers and deciders have?
- `request_control`: which methods do the kinds around scheduling have, such as parsers, producers and observers?
- `flow_control`: which methods do the policies have that say which waiting request goes next?
- `datalayer`: which methods do discoveries, data sources and data collectors have?
- `endpoints`: which endpoints are there, and what is known of each?
- `endpoint`: what does discovery say of one?
- `generation`: which rows and columns does a view of endpoints show? The host makes them.
- `access`: which data may the plugin that runs now read and write? The host says, the views ask.
- `request`: what does a request ask for, and how does a plugin refuse it?
- `state`: what did the producers find out about a request, and where does a plugin keep notes of its own?
- `data`: how does a plugin declare the data that it reads and writes?
- `keys`: which data does endpick itself define?
- `metrics`: how is a Prometheus page read, and how are the labels of a plugin's own metrics bounded?
- `fast_metrics`: how does a plugin count at little cost what happens in each request?
- `limits`: how does a plugin count and tell what it refuses for its size?
- `duration`: how does a configuration write a duration?
- `grpc_server`: how does a port on grpcio live with clients that name methods which are no text?
- `turns`: who is read when, where many send much?
- `tls_channel`: how does a port speak TLS, so that no client's handshake or records keep others waiting?
- `errors`: which exceptions may a plugin raise, and which does it get to see?
- `hooks`: what may an extension object do when the process starts, reloads and stops?

Plugins and every package of endpick call it. It imports nothing else of endpick.
"""

from endpick.api.data import AnyKey, DataKey, Scope, Subscriptions
from endpick.api.datalayer import (
    DataCollector,
    DataSource,
    EndpointChange,
    EndpointDiscovery,
    EndpointEvent,
    EndpointEventSource,
    EndpointRegistry,
    ModelRewrite,
    ModelTarget,
    PollingPoolSource,
    PollingSource,
    PoolSource,
    StreamSource,
)
from endpick.api.duration import Duration, parse_duration
from endpick.api.endpoint import Endpoint
from endpick.api.endpoints import BoolArray, EndpointRow, Endpoints, FloatArray, RowArray
from endpick.api.errors import (
    ConfigurationError,
    EndpickError,
    PluginError,
    ReloadRejected,
    Unavailable,
    UndeclaredAccess,
    UnknownKey,
)
from endpick.api.flow_control import (
    Band,
    DispatchedRequest,
    EvictionFilter,
    EvictionOrderingPolicy,
    FairnessPolicy,
    Flow,
    OrderingPolicy,
    SortKey,
    UsageLimitPolicy,
    WaitingRequest,
)
from endpick.api.hooks import hookimpl
from endpick.api.keys import (
    AGENT_IDENTITY,
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    GPU_UTILIZATION,
    INFLIGHT_REQUESTS,
    INFLIGHT_TOKENS,
    KV_CACHE_USAGE,
    LORA_ADAPTERS,
    MEDIA_ITEMS,
    MEDIA_MATCHED,
    MULTICLUSTER_KV_CACHE_USAGE,
    MULTICLUSTER_QUEUE_SIZE,
    PEER_ENDPOINT,
    PREDICTED_TPOT,
    PREDICTED_TTFT,
    PREFIX_BLOCKS,
    PREFIX_CACHED_BLOCKS,
    PREFIX_HOST_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    PREFIX_MATCH_SHARE,
    RUNNING_REQUESTS_SIZE,
    SERVED_MODELS,
    SESSION_ID,
    TOKENIZED_PROMPT,
    TOPOLOGY,
    TPOT_HEADROOM,
    TTFT_HEADROOM,
    UNCACHED_REQUEST_TOKENS,
    WAITING_QUEUE_SIZE,
    LoraAdapters,
    MediaPlace,
    PrefixBlocks,
    PromptTokens,
    ServedModel,
    Topology,
)
from endpick.api.metrics import LabelLimit, MetricSample, MetricsPage
from endpick.api.plugin import ColumnWriter, Parameters, Plugin, PluginContext, RefersTo, Stability, ignored
from endpick.api.request import InferenceRequest, JSONObject, JSONValue, Media, Modality, ParsedRequest, Piece, Prompt, Rejection, Usage
from endpick.api.request_control import (
    Admitter,
    CandidateFilter,
    DataProducer,
    Metadata,
    MetadataValue,
    Parser,
    PreRequest,
    RequestHeaderProcessor,
    ResponseEnd,
    ResponseHead,
    ResponseObserver,
    SaturationDetector,
    TerminationCause,
    UpstreamHeaders,
)
from endpick.api.scheduling import (
    Category,
    DisaggregationDecider,
    Filter,
    PerEndpointScorer,
    Picker,
    ProfileHandler,
    ProfileRunResult,
    SchedulingResult,
    ScoredEndpoints,
    Scorer,
)
from endpick.api.state import CycleState, ScoringState

__all__ = (
    "AGENT_IDENTITY",
    "CACHE_BLOCK_SIZE",
    "CACHE_NUM_BLOCKS",
    "GPU_UTILIZATION",
    "INFLIGHT_REQUESTS",
    "INFLIGHT_TOKENS",
    "KV_CACHE_USAGE",
    "LORA_ADAPTERS",
    "MEDIA_ITEMS",
    "MEDIA_MATCHED",
    "MULTICLUSTER_KV_CACHE_USAGE",
    "MULTICLUSTER_QUEUE_SIZE",
    "PEER_ENDPOINT",
    "PREDICTED_TPOT",
    "PREDICTED_TTFT",
    "PREFIX_BLOCKS",
    "PREFIX_CACHED_BLOCKS",
    "PREFIX_HOST_BLOCKS",
    "PREFIX_MATCH_BLOCKS",
    "PREFIX_MATCH_SHARE",
    "RUNNING_REQUESTS_SIZE",
    "SERVED_MODELS",
    "SESSION_ID",
    "TOKENIZED_PROMPT",
    "TOPOLOGY",
    "TPOT_HEADROOM",
    "TTFT_HEADROOM",
    "UNCACHED_REQUEST_TOKENS",
    "WAITING_QUEUE_SIZE",
    "Admitter",
    "AnyKey",
    "Band",
    "BoolArray",
    "CandidateFilter",
    "Category",
    "ColumnWriter",
    "ConfigurationError",
    "CycleState",
    "DataCollector",
    "DataKey",
    "DataProducer",
    "DataSource",
    "DisaggregationDecider",
    "DispatchedRequest",
    "Duration",
    "EndpickError",
    "Endpoint",
    "EndpointChange",
    "EndpointDiscovery",
    "EndpointEvent",
    "EndpointEventSource",
    "EndpointRegistry",
    "EndpointRow",
    "Endpoints",
    "EvictionFilter",
    "EvictionOrderingPolicy",
    "FairnessPolicy",
    "Filter",
    "FloatArray",
    "Flow",
    "InferenceRequest",
    "JSONObject",
    "JSONValue",
    "LabelLimit",
    "LoraAdapters",
    "Media",
    "MediaPlace",
    "Metadata",
    "MetadataValue",
    "MetricSample",
    "MetricsPage",
    "Modality",
    "ModelRewrite",
    "ModelTarget",
    "OrderingPolicy",
    "Parameters",
    "ParsedRequest",
    "Parser",
    "PerEndpointScorer",
    "Picker",
    "Piece",
    "Plugin",
    "PluginContext",
    "PluginError",
    "PollingPoolSource",
    "PollingSource",
    "PoolSource",
    "PreRequest",
    "PrefixBlocks",
    "ProfileHandler",
    "ProfileRunResult",
    "Prompt",
    "PromptTokens",
    "RefersTo",
    "Rejection",
    "ReloadRejected",
    "RequestHeaderProcessor",
    "ResponseEnd",
    "ResponseHead",
    "ResponseObserver",
    "RowArray",
    "SaturationDetector",
    "SchedulingResult",
    "Scope",
    "ScoredEndpoints",
    "Scorer",
    "ScoringState",
    "ServedModel",
    "SortKey",
    "Stability",
    "StreamSource",
    "Subscriptions",
    "TerminationCause",
    "Topology",
    "Unavailable",
    "UndeclaredAccess",
    "UnknownKey",
    "UpstreamHeaders",
    "Usage",
    "UsageLimitPolicy",
    "WaitingRequest",
    "hookimpl",
    "ignored",
    "parse_duration",
)
