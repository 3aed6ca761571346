"""The real backend: llama.cpp through its C API, arguments checked before every call."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runner.engine import symbols
from runner.engine.backend import (
    MAX_SEQUENCES,
    BackendError,
    CacheFull,
    Capabilities,
    DecodeFailed,
    Entry,
    InvalidRequest,
    Logits,
    StateRefused,
    TokenIds,
    Vocabulary,
    check_copy,
    check_entries,
    check_sequence,
)
from runner.engine.batch import Batch
from runner.engine.nativelog import NativeLog
from runner.engine.parameters import LoadParameters

_FLASH: Final = {"auto": -1, "off": 0, "on": 1}
_KV_TYPES: Final = {"f32": 0, "f16": 1, "q8_0": 8}
_PIECE_BYTES: Final = 64


class LlamaCppBackend:
    """`NativeBackend` over llama.cpp. Construct with `LoadParameters`, free with `close`."""

    def __init__(self, parameters: LoadParameters) -> None:
        """Load the model.

        Raises:
            InvalidRequest: n_seq_max or a size out of range.
            BackendError: the library or the model could not be loaded; the message ends with the
                library's own last error.
        """
        if not 1 <= parameters.n_seq_max <= MAX_SEQUENCES:
            raise InvalidRequest(f"n_seq_max {parameters.n_seq_max} is outside 1..{MAX_SEQUENCES}")
        if min(parameters.n_ctx, parameters.n_batch, parameters.n_ubatch) < 1:
            raise InvalidRequest("n_ctx, n_batch and n_ubatch must be at least 1")
        if min(parameters.n_ctx, parameters.n_batch) < parameters.n_seq_max:
            # The library asserts on it: a batch must hold one token of every sequence.
            raise InvalidRequest(
                f"n_ctx {parameters.n_ctx} and n_batch {parameters.n_batch} must be at least "
                f"n_seq_max {parameters.n_seq_max}"
            )
        self._parameters = parameters
        self._model: Any = None
        self._context: Any = None
        self._binding = symbols.load_binding(parameters.lib_dir)
        self._log = NativeLog(self._binding)
        self._binding.llama_backend_init()
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        binding = self._binding
        self._model = self._load_model()
        self._context = self._make_context()
        self._memory = symbols.memory_calls(binding, self._context)
        self._state = symbols.state_calls(binding)
        self._vocab = symbols.vocabulary_handle(binding, self._model)
        self._vocabulary = self._read_vocabulary()
        self._capabilities = self._read_capabilities(can_roll_back=True)
        self._ends = [0] * self._capabilities.n_seq_max
        n_ctx = self._capabilities.n_ctx
        self._batch = Batch(binding, self._capabilities.n_batch, n_ctx)
        self._decode = binding.llama_decode
        self._get_logits = binding.llama_get_logits
        self._capabilities = self._read_capabilities(can_roll_back=self._try_roll_back())

    def _load_model(self) -> Any:
        p = self._parameters
        native = self._binding.llama_model_default_params()
        native.n_gpu_layers = p.n_gpu_layers
        model = self._binding.llama_model_load_from_file(str(p.model_path).encode(), native)
        if not model:
            raise BackendError(f"cannot load {p.model_path}: {self._log.last_error()}")
        return model

    def _make_context(self) -> Any:
        p = self._parameters
        native = self._binding.llama_context_default_params()
        native.n_ctx = p.n_ctx
        native.n_batch = p.n_batch
        native.n_ubatch = min(p.n_ubatch, p.n_batch)
        native.n_seq_max = p.n_seq_max
        native.n_threads = native.n_threads_batch = p.n_threads
        native.flash_attn_type = _FLASH[p.flash_attention]
        native.type_k = native.type_v = _KV_TYPES[p.kv_type]
        native.kv_unified = p.unified_kv
        native.no_perf = False
        context = self._binding.llama_init_from_model(self._model, native)
        if not context:
            raise BackendError(
                f"cannot make a context of n_ctx {p.n_ctx} and {p.n_seq_max} sequences for "
                f"{p.model_path.name}: {self._log.last_error()}"
            )
        return context

    def _read_vocabulary(self) -> Vocabulary:
        binding, vocab = self._binding, self._vocab
        count = symbols.require(binding, "llama_vocab_n_tokens", "llama_n_vocab")(vocab)
        is_end = symbols.require(binding, "llama_vocab_is_eog", "llama_token_is_eog")
        wants_bos = symbols.require(binding, "llama_vocab_get_add_bos", "llama_add_bos_token")
        bos = symbols.require(binding, "llama_vocab_bos", "llama_token_bos")(vocab)
        ends = frozenset(token for token in range(count) if is_end(vocab, token))
        return Vocabulary(count, int(bos) if wants_bos(vocab) and bos >= 0 else None, ends)

    def _read_capabilities(self, *, can_roll_back: bool) -> Capabilities:
        binding, context = self._binding, self._context
        per_sequence = symbols.find(binding, "llama_n_ctx_seq")
        n_cells = int(binding.llama_n_ctx(context))
        unified = self._parameters.unified_kv
        split = n_cells if unified else n_cells // self._parameters.n_seq_max
        is_recurrent = symbols.find(binding, "llama_model_is_recurrent")
        window = symbols.find(binding, "llama_model_n_swa")
        return Capabilities(
            # llama.cpp rounds n_ctx up to its cell granularity; what was asked for is the limit.
            n_ctx=min(
                int(per_sequence(context)) if per_sequence else split, self._parameters.n_ctx
            ),
            n_cells=n_cells,
            n_batch=int(binding.llama_n_batch(context)),
            n_seq_max=int(binding.llama_n_seq_max(context)),
            unified_kv=unified,
            can_roll_back=can_roll_back,
            sliding_window=int(window(self._model)) if window else 0,
            recurrent=bool(is_recurrent(self._model)) if is_recurrent else False,
        )

    def _try_roll_back(self) -> bool:
        """Ask memory by doing it: decode two tokens, take the second back."""
        if self._capabilities.n_ctx < 2:
            return False
        for at in range(2):  # one by one: n_batch may be 1
            self.decode([Entry(0, at, np.zeros(1, dtype=np.int32), want_logits=False)])
        self.synchronize()
        removed = bool(self._memory.remove(self._memory.handle, 0, 1, -1))
        self.seq_remove(0)
        return removed

    @property
    def capabilities(self) -> Capabilities:
        """See `NativeBackend`."""
        return self._capabilities

    @property
    def vocabulary(self) -> Vocabulary:
        """See `NativeBackend`."""
        return self._vocabulary

    @property
    def fingerprint(self) -> str:
        """See `NativeBackend`."""
        p = self._parameters
        parts = (p.model_sha256, p.library_sha256, p.kv_type, p.flash_attention, str(p.unified_kv))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def system_info(self) -> str:
        """What the library says it uses of this machine."""
        return str(self._binding.llama_print_system_info().decode())

    def decode(self, entries: Sequence[Entry]) -> Logits:
        """See `NativeBackend`."""
        check_entries(self._capabilities, self._vocabulary.n_tokens, self._ends, entries)
        n_rows = self._batch.fill(entries)
        code = self._decode(self._context, self._batch.native)
        if code:
            self._refuse(code, entries)
        for seq, start, tokens, _ in entries:
            self._ends[seq] = start + len(tokens)
        return self._rows(n_rows)

    def _rows(self, n_rows: int) -> Logits:
        n_vocab = self._vocabulary.n_tokens
        if not n_rows:
            return np.empty((0, n_vocab), dtype=np.float32)
        # Reading the pointer waits for the work and puts the rows in batch order.
        pointer = self._get_logits(self._context)
        address = ctypes.addressof(pointer.contents)
        flat: Any = (ctypes.c_float * (n_rows * n_vocab)).from_address(address)
        rows: Logits = np.frombuffer(flat, dtype=np.float32).reshape(n_rows, n_vocab)
        return rows

    def _refuse(self, code: int, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._ends[entry.seq] = self._ask_end(entry.seq)
        if code == 1:
            wanted = sum(len(entry.tokens) for entry in entries)
            raise CacheFull(
                f"no room for {wanted} more KV cells of {self._capabilities.n_cells}; "
                "raise n_ctx or close sessions"
            )
        raise DecodeFailed(code)

    def _ask_end(self, seq: int) -> int:
        if self._memory.last_position is None:
            raise BackendError("this llama.cpp cannot tell where a sequence ends")
        return int(self._memory.last_position(self._memory.handle, seq)) + 1

    def seq_copy(self, src: int, dst: int, n_tokens: int | None = None) -> None:
        """See `NativeBackend`."""
        count = check_copy(self._capabilities, self._ends, src, dst, n_tokens)
        end = count if count < self._ends[src] else -1
        self._memory.copy(self._memory.handle, src, dst, 0 if end > 0 else -1, end)
        self._ends[dst] = count

    def seq_remove(self, seq: int, start: int = 0) -> bool:
        """See `NativeBackend`."""
        check_sequence(self._capabilities, seq)
        end = self._ask_end(seq)
        if not 0 <= start <= max(end, self._ends[seq]):
            raise InvalidRequest(f"sequence {seq} ends at {end}, not past {start}")
        whole = start == 0
        if not whole and start < end and not self._capabilities.can_roll_back:
            return False
        if not self._memory.remove(self._memory.handle, seq, -1 if whole else start, -1):
            return False
        self._ends[seq] = self._ask_end(seq)
        return True

    def seq_end(self, seq: int) -> int:
        """See `NativeBackend`."""
        check_sequence(self._capabilities, seq)
        return self._ask_end(seq)

    def state_get(self, seq: int) -> NDArray[np.uint8]:
        """See `NativeBackend`."""
        check_sequence(self._capabilities, seq)
        self.synchronize()
        size = int(self._state.size(self._context, seq))
        data = np.empty(size, dtype=np.uint8)
        pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        written = int(self._state.get(self._context, pointer, size, seq))
        if written == 0:
            raise BackendError(f"llama.cpp gave no state for sequence {seq}")
        return data[:written]

    def state_set(self, seq: int, state: NDArray[np.uint8]) -> None:
        """See `NativeBackend`."""
        self.seq_remove(seq)
        data = np.ascontiguousarray(state, dtype=np.uint8)
        pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        read = int(self._state.set(self._context, pointer, data.size, seq)) if data.size else 0
        self._ends[seq] = self._ask_end(seq)
        if read != data.size or not read:
            self.seq_remove(seq)
            raise StateRefused(f"llama.cpp took {read} of {data.size} bytes of state")

    def tokenize(self, text: bytes, *, special: bool = False) -> TokenIds:
        """See `NativeBackend`."""
        room = len(text) + 8
        while True:
            tokens = np.empty(room, dtype=np.int32)
            pointer = tokens.ctypes.data_as(ctypes.POINTER(self._binding.llama_token))
            count = self._binding.llama_tokenize(
                self._vocab, text, len(text), pointer, room, False, special
            )
            if count >= 0:
                return tokens[:count].copy()
            room = -count

    def detokenize(self, tokens: TokenIds | Sequence[int]) -> bytes:
        """See `NativeBackend`."""
        return b"".join(self._piece(int(token)) for token in tokens)

    def _piece(self, token: int) -> bytes:
        """One token's bytes; a buffer that is too small is answered by the size it needs."""
        if not 0 <= token < self._vocabulary.n_tokens:
            raise InvalidRequest(f"token id {token} is outside 0..{self._vocabulary.n_tokens - 1}")
        size = _PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = self._binding.llama_token_to_piece(self._vocab, token, buffer, size, 0, True)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def synchronize(self) -> None:
        """See `NativeBackend`."""
        self._binding.llama_synchronize(self._context)

    def close(self) -> None:
        """See `NativeBackend`."""
        if self._context:
            self._binding.llama_free(self._context)
            self._context = None
        if self._model:
            self._binding.llama_model_free(self._model)
            self._model = None
