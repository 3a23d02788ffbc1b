"""Models of transformers that none of the other lists names, made small: of the sizes below each takes those that its settings know."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Callable, Iterator

SIZES: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "sliding_window": 8, "d_model": 32, "num_heads": 4, "num_layers": 2,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
    "n_shared_experts": 1, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "num_labels": 5,
}  # fmt: skip
_ALIKE = {"num_key_value_heads": 4}
_BARE = {"decoder_start_token_id": 0}
#: Models by what they are given, and what some of them need beside the sizes (None: nothing is said).
GIVEN = {
    "words": """AfmoeForCausalLM ApertusForCausalLM ArceeForCausalLM AriaTextForCausalLM BailingHybridForCausalLM BartForCausalLM BeamForCausalLM BertLMHeadModel BertGenerationDecoder
        BigBirdForCausalLM BigBirdPegasusForCausalLM BlenderbotForCausalLM BlenderbotSmallForCausalLM CamembertForCausalLM Cohere2ForCausalLM Cohere2MoeForCausalLM CpmAntForCausalLM
        CwmForCausalLM Data2VecTextForCausalLM DeepseekV2ForCausalLM DeepseekV4ForCausalLM DiffLlamaForCausalLM DogeForCausalLM Dots1ForCausalLM ElectraForCausalLM ErnieForCausalLM Ernie4_5ForCausalLM
        Ernie4_5_MoeForCausalLM ExaoneMoeForCausalLM FalconH1ForCausalLM FlexOlmoForCausalLM FlintForCausalLM Gemma4UnifiedForCausalLM Glm4ForCausalLM Glm4MoeForCausalLM
        Glm4MoeLiteForCausalLM GPTNeoXJapaneseForCausalLM GraniteSWAForCausalLM GraniteMoeSWAForCausalLM GraniteMoeSharedForCausalLM HrmTextForCausalLM HunYuanDenseV1ForCausalLM HunYuanMoEV1ForCausalLM
        HYV3ForCausalLM HYV4ForCausalLM HyperCLOVAXForCausalLM Inkling2ForCausalLM InklingForCausalLM Jais2ForCausalLM JambaForCausalLM JetMoeForCausalLM KimiLinearForCausalLM
        Kolibri1ForCausalLM LagunaForCausalLM Lfm3ForCausalLM Llama4ForCausalLM LongcatFlashForCausalLM MarianForCausalLM MBartForCausalLM MegatronBertForCausalLM MellumForCausalLM MiMoV2FlashForCausalLM
        MiniCPM3ForCausalLM MiniMaxForCausalLM MiniMaxM2ForCausalLM MiniMaxM3VLForCausalLM MinistralForCausalLM Ministral3ForCausalLM ModernBertDecoderForCausalLM MoshiForCausalLM MvpForCausalLM NanoChatForCausalLM
        NemotronHForCausalLM Olmo3ForCausalLM OlmoHybridForCausalLM PegasusForCausalLM PhimoeForCausalLM ProphetNetForCausalLM Qwen3_5MoeForCausalLM Qwen3_5ForCausalLM Qwen3MoeForCausalLM
        Qwen3NextForCausalLM Qwen4ExpForCausalLM ReformerModelWithLMHead RemBertForCausalLM RobertaForCausalLM RobertaPreLayerNormForCausalLM RoCBertForCausalLM RoFormerForCausalLM SeedOssForCausalLM SolarOpenForCausalLM
        TrOCRForCausalLM VaultGemmaForCausalLM WhisperForCausalLM XLMRobertaForCausalLM XLMRobertaXLForCausalLM xLSTMForCausalLM YoutuForCausalLM EsmForMaskedLM EuroBertForMaskedLM FlaubertWithLMHeadModel GteForMaskedLM
        IBertForMaskedLM JinaEmbeddingsV3ForMaskedLM LongformerForMaskedLM MraForMaskedLM NomicBertForMaskedLM NystromformerForMaskedLM TapasForMaskedLM UltrabertForMaskedLM YosoForMaskedLM
        FSMTForConditionalGeneration LEDForConditionalGeneration LongT5ForConditionalGeneration NllbMoeForConditionalGeneration PegasusXForConditionalGeneration SeamlessM4TForTextToText SeamlessM4Tv2ForTextToText
        SwitchTransformersForConditionalGeneration""",
    "class": """AlbertForSequenceClassification BioGptForSequenceClassification BloomForSequenceClassification CanineForSequenceClassification ConvBertForSequenceClassification
        CTRLForSequenceClassification DebertaForSequenceClassification DebertaV2ForSequenceClassification DistilBertForSequenceClassification Exaone4ForSequenceClassification
        FalconForSequenceClassification FNetForSequenceClassification FunnelForSequenceClassification GemmaForSequenceClassification Gemma2ForSequenceClassification
        Gemma3TextForSequenceClassification GlmForSequenceClassification GPTBigCodeForSequenceClassification GPTNeoXForSequenceClassification GptOssForSequenceClassification
        HeliumForSequenceClassification LayoutLMForSequenceClassification LlamaForSequenceClassification MarkupLMForSequenceClassification MistralForSequenceClassification
        MixtralForSequenceClassification MobileBertForSequenceClassification ModernBertForSequenceClassification MPNetForSequenceClassification MptForSequenceClassification
        NemotronForSequenceClassification OlmoForSequenceClassification Olmo2ForSequenceClassification OpenAIGPTForSequenceClassification OPTForSequenceClassification
        PersimmonForSequenceClassification PhiForSequenceClassification Phi3ForSequenceClassification Qwen2ForSequenceClassification Qwen2MoeForSequenceClassification
        Qwen3ForSequenceClassification SmolLM3ForSequenceClassification StableLmForSequenceClassification Starcoder2ForSequenceClassification XLMForSequenceClassification""",
    "pictures": "SwiftFormerForImageClassification HieraForImageClassification EfficientNetForImageClassification",
    # Of smaller ones their last norms would be over two numbers, of which rounding decides.
    "pictures 96": "HGNetV2ForImageClassification MobileNetV2ForImageClassification TextNetForImageClassification LevitForImageClassification",
}
BESIDE: dict[str, dict[str, Any]] = {
    "DeepseekV2ForCausalLM": _ALIKE, "Glm4MoeLiteForCausalLM": _ALIKE, "LongcatFlashForCausalLM": _ALIKE, "MiniCPM3ForCausalLM": _ALIKE, "YoutuForCausalLM": _ALIKE,
    "LongT5ForConditionalGeneration": _BARE, "SwitchTransformersForConditionalGeneration": _BARE,
    "ReformerModelWithLMHead": {"is_decoder": True, "axial_pos_embds": False, "attention_head_size": 8, "attn_layers": ["local", "lsh"], "num_hashes": 1, "hash_seed": 0, "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4},
    # For short texts it would put another attention in the place of its own at the first call.
    "BigBirdForCausalLM": {"attention_type": "original_full"},
    "WhisperForCausalLM": {"decoder_attention_heads": 4},
    "LevitForImageClassification": {"num_attention_heads": None, "image_size": 96, "hidden_sizes": [32, 48, 64]},
    "HieraForImageClassification": {"image_size": [32, 32], "num_heads": None, "embed_dim": 16, "depths": [1, 1, 1, 1]},
    "EfficientNetForImageClassification": {"depth_coefficient": 0.5},
}  # fmt: skip


def _settings(model: str) -> tuple[type, dict[str, Any]]:
    """The class of a model's settings, and the sizes among them."""
    import transformers

    config = getattr(transformers, model).config_class
    known = {field.name for field in dataclasses.fields(config)} if dataclasses.is_dataclass(config) else set(inspect.signature(config).parameters)
    known |= {*getattr(config, "attribute_map", {}), "num_labels"}
    sizes = {**SIZES, **BESIDE.get(model, {})}
    return config, {name: value for name, value in sizes.items() if value is not None and (name in known or name in BESIDE.get(model, {}))}


def small(told: Callable[..., Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each model's name with what makes it, through ``told`` as the models of the written list are made."""
    for given, names in GIVEN.items():
        for model in names.split():

            def made(model: str = model, given: str = given) -> Any:
                config, settings = _settings(model)
                if given.startswith("pictures"):
                    settings = {name: value for name, value in settings.items() if not name.endswith("token_id") and name != "vocab_size"}
                return told(model, config.__name__, settings, given)()

            yield f"transformers/{model}", made
