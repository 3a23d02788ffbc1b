"""The models of the table: each by its name and a function that makes the module, its loss and a batch."""

from __future__ import annotations

from typing import Any, Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn
from parts import parts
from small import small
from written import Made, written


class Classified(nn.Module):
    """A model of pictures with a loss over all that it gives."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = self.model(x)
        if isinstance(out, dict):
            out = list(out.values())
        if isinstance(out, torch.Tensor):
            out = [out]
        losses = []
        for part in out:
            if part is None:
                continue
            # Maps of classes are judged by their mean.
            part = part.mean(tuple(range(2, part.dim()))) if part.dim() > 2 else part
            losses.append(F.cross_entropy(part, y))
        return sum(losses[1:], losses[0])


class Told(nn.Module):
    """A model of transformers, which gives its loss where it is given labels."""

    def __init__(self, model: nn.Module, takes: str, settings: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.takes, self.settings = takes, settings

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.model(**{self.takes: x}, labels=labels, **self.settings).loss


def _pictures(make: Callable[[], nn.Module], size: int, batch: int = 4) -> Callable[[], Made]:
    def made() -> Made:
        return Classified(make()), (torch.randn(batch, 3, size, size), torch.arange(batch) % 10)

    return made


def _video(make: Callable[[], nn.Module], frames: int, size: int) -> Callable[[], Made]:
    return lambda: (Classified(make()), (torch.randn(2, 3, frames, size, size), torch.arange(2)))


TORCHVISION = {
    64: """vgg11 vgg11_bn vgg13_bn vgg16 vgg19_bn resnet18 resnet34 resnet50 resnet101 resnext50_32x4d wide_resnet50_2 densenet121 densenet169
        mobilenet_v2 mobilenet_v3_small mobilenet_v3_large shufflenet_v2_x0_5 shufflenet_v2_x1_0 squeezenet1_0 squeezenet1_1 mnasnet0_5 mnasnet1_0
        efficientnet_b0 efficientnet_b1 efficientnet_v2_s regnet_y_400mf regnet_x_400mf convnext_tiny convnext_small swin_t swin_s swin_v2_t""",
    96: "alexnet googlenet inception_v3",
    224: "maxvit_t",
}
#: Models of torchvision that are made for one size, which can be said.
TORCHVISION_SIZED = "vit_b_32 vit_b_16"
SEGMENTATION = "fcn_resnet50 deeplabv3_resnet50 deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large"
VIDEO = "r3d_18 mc3_18 r2plus1d_18 s3d"
TIMM = {
    64: """resnet10t resnet14t resnet26d resnet50d resnetv2_50 seresnet33ts seresnext26d_32x4d ecaresnet26t skresnet18 res2net50_26w_4s resnest14d
        mobilenetv1_100 mobilenetv3_small_100 mobilenetv4_conv_small mobilenetv4_hybrid_medium efficientnet_lite0 efficientnetv2_rw_t tf_efficientnetv2_b0 mixnet_s
        convnext_atto convnextv2_atto poolformer_s12 poolformerv2_s12 regnetx_002 regnety_002 ghostnet_050 ghostnetv2_100 hardcorenas_a edgenext_xx_small repvgg_a0 repvgg_b0
        dla34 dla46_c hrnet_w18_small cspresnet50 cspdarknet53 darknet53 densenet121 selecsls42b nf_resnet26 nfnet_l0 dpn48b vovnet39a ese_vovnet19b_dw
        fbnetc_100 spnasnet_100 semnasnet_075 mnasnet_small lcnet_050 tinynet_e rexnet_100 rexnetr_200 gernet_s gcresnet33ts eca_nfnet_l0 xception41 inception_next_tiny mobileone_s0 fastvit_t8 starnet_s1 repghostnet_050 hgnet_tiny hgnetv2_b0
        caformer_s18 convformer_s18 efficientvit_b0 mobilevit_xxs mobilevitv2_050 xcit_nano_12_p16_224 davit_tiny
        cspnext_tiny fasternet_t0 lcnetv2_small nextvit_small rdnet_tiny repvit_m0_9 legacy_seresnet18 shvit_s1 swiftformer_xs tresnet_m vgg11 iformer_t lowformer_b0 cpubone_nano
        csatv2 mvitv2_tiny convmixer_768_32""",
    96: "legacy_xception nasnetalarge pnasnet5large mobilenetv5_base",
    224: """levit_128s swin_tiny_patch4_window7_224 twins_pcpvt_small twins_svt_small pvt_v2_b0 convit_tiny tnt_s_patch16_224 nest_tiny_jx efficientformer_l1
        focalnet_tiny_srf sequencer2d_s maxxvit_rmlp_nano_rw_256 coatnet_nano_rw_224 efficientvim_m1 efficientvit_m0 gcvit_xxtiny hiera_tiny_224 swinv2_cr_tiny_224 tiny_vit_5m_224
        vit_tiny_r_s16_p8_224 volo_d1_224""",
    240: "crossvit_tiny_240",
    256: "botnet26t_256 halonet26t lambda_resnet26t bat_resnext26ts",
    # Inception's last norms would be over four numbers in smaller pictures.
    160: """inception_v3 inception_v4 inception_resnet_v2
        test_vit test_vit2 test_vit3 test_byobnet test_efficientnet test_convnext test_convnext2 test_convnext3 test_resnet test_nfnet test_mambaout""",
}
#: Models of timm that are made for one size, which can be said.
TIMM_SIZED = """vit_tiny_patch16_224 deit_tiny_patch16_224 deit3_small_patch16_224 mixer_s32_224 resmlp_12_224 gmlp_s16_224 pit_ti_224 cait_xxs24_224 beit_base_patch16_224
    vit_relpos_small_patch16_224 vit_small_patch32_224 eva02_tiny_patch14_224 efficientformerv2_s0 visformer_tiny
    naflexvit_base_patch16_gap samvit_base_patch16_224 qwen3_vit_88m swinv2_tiny_window8_256 sam2_hiera_tiny coat_tiny vitamin_small_224"""


def _filmed(model: nn.Module) -> nn.Module:
    """A model of films; the one that wants them 224 wide takes the mean of all that is left of smaller ones."""
    if hasattr(model, "avgpool") and isinstance(model.avgpool, nn.AvgPool3d):
        model.avgpool = nn.AdaptiveAvgPool3d(1)
    return model


def _torchvision() -> Iterator[tuple[str, Callable[[], Made]]]:
    import torchvision.models as zoo

    for size, names in TORCHVISION.items():
        for name in names.split():
            # The second head of inception_v3 wants pictures of 299.
            settings = {"googlenet": {"aux_logits": True, "init_weights": True}, "inception_v3": {"aux_logits": False, "init_weights": False}}.get(name, {})
            yield f"torchvision/{name}", _pictures(lambda name=name, settings=settings: getattr(zoo, name)(num_classes=10, **settings), size, 2 if size > 96 else 4)
    for name in TORCHVISION_SIZED.split():
        yield f"torchvision/{name}", _pictures(lambda name=name: getattr(zoo, name)(num_classes=10, image_size=64), 64)
    for name in SEGMENTATION.split():
        settings = {"weights": None, "weights_backbone": None, "num_classes": 10}
        yield f"torchvision/{name}", _pictures(lambda name=name: getattr(zoo.segmentation, name)(**settings), 64)
    for name in VIDEO.split():
        yield f"torchvision/{name}", _video(lambda name=name: _filmed(getattr(zoo.video, name)(num_classes=10)), 16 if name == "s3d" else 4, 32)


def _timm() -> Iterator[tuple[str, Callable[[], Made]]]:
    import timm

    for size, names in TIMM.items():
        for name in names.split():
            yield f"timm/{name}", _pictures(lambda name=name: timm.create_model(name, num_classes=10), 256 if "256" in name and size == 224 else size, 2 if size > 64 else 4)
    for name in TIMM_SIZED.split():
        size = 56 if "patch14" in name else 64
        yield f"timm/{name}", _pictures(lambda name=name, size=size: timm.create_model(name, num_classes=10, img_size=size), size)


_SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64, "pad_token_id": 0}
_GROUPED = {**_SMALL, "num_key_value_heads": 2}
_HEADED = {**_GROUPED, "head_dim": 8}
_GPT = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_D_MODEL = {"vocab_size": 50, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "pad_token_id": 0, "max_position_embeddings": 64}
_T5 = {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0, "pad_token_id": 0}
_PICTURES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32, "patch_size": 8, "num_labels": 5}
_SOUND = {**_SMALL, "conv_dim": [16, 16], "conv_stride": [4, 2], "conv_kernel": [8, 3], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "num_labels": 5, "classifier_proj_size": 16, "mask_time_prob": 0.0, "layerdrop": 0.0}
#: Name, model, config, settings, and what it is given: words, pictures, or sound.
TRANSFORMERS: list[tuple[str, str, str, dict[str, Any], str]] = [
    ("gpt2", "GPT2LMHeadModel", "GPT2Config", _GPT, "words"),
    ("gpt2_classes", "GPT2ForSequenceClassification", "GPT2Config", {**_GPT, "pad_token_id": 0}, "class"),
    ("gpt_neo", "GPTNeoForCausalLM", "GPTNeoConfig", {"vocab_size": 50, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64}, "words"),
    ("gptj", "GPTJForCausalLM", "GPTJConfig", {**_GPT, "rotary_dim": 4}, "words"),
    ("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", _SMALL, "words"),
    ("gpt_bigcode", "GPTBigCodeForCausalLM", "GPTBigCodeConfig", _GPT, "words"),
    ("codegen", "CodeGenForCausalLM", "CodeGenConfig", {**_GPT, "rotary_dim": 4}, "words"),
    ("bloom", "BloomForCausalLM", "BloomConfig", {"vocab_size": 50, "hidden_size": 32, "n_layer": 2, "n_head": 4}, "words"),
    ("falcon", "FalconForCausalLM", "FalconConfig", {**_SMALL, "alibi": False}, "words"),
    ("opt", "OPTForCausalLM", "OPTConfig", {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 64}, "words"),
    ("llama", "LlamaForCausalLM", "LlamaConfig", _GROUPED, "words"),
    ("mistral", "MistralForCausalLM", "MistralConfig", _GROUPED, "words"),
    ("mixtral", "MixtralForCausalLM", "MixtralConfig", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}, "words"),
    ("qwen2", "Qwen2ForCausalLM", "Qwen2Config", _GROUPED, "words"),
    ("qwen3", "Qwen3ForCausalLM", "Qwen3Config", _HEADED, "words"),
    ("gemma", "GemmaForCausalLM", "GemmaConfig", _HEADED, "words"),
    ("gemma2", "Gemma2ForCausalLM", "Gemma2Config", _HEADED, "words"),
    ("gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig", _HEADED, "words"),
    ("phi", "PhiForCausalLM", "PhiConfig", _SMALL, "words"),
    ("phi3", "Phi3ForCausalLM", "Phi3Config", _GROUPED, "words"),
    ("stablelm", "StableLmForCausalLM", "StableLmConfig", _GROUPED, "words"),
    ("olmo", "OlmoForCausalLM", "OlmoConfig", _SMALL, "words"),
    ("olmo2", "Olmo2ForCausalLM", "Olmo2Config", _SMALL, "words"),
    ("granite", "GraniteForCausalLM", "GraniteConfig", _GROUPED, "words"),
    ("cohere", "CohereForCausalLM", "CohereConfig", _GROUPED, "words"),
    ("starcoder2", "Starcoder2ForCausalLM", "Starcoder2Config", _GROUPED, "words"),
    ("smollm3", "SmolLM3ForCausalLM", "SmolLM3Config", _GROUPED, "words"),
    ("nemotron", "NemotronForCausalLM", "NemotronConfig", _GROUPED, "words"),
    ("mpt", "MptForCausalLM", "MptConfig", {"vocab_size": 50, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}, "words"),
    ("mamba", "MambaForCausalLM", "MambaConfig", {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, "words"),
    ("xglm", "XGLMForCausalLM", "XGLMConfig", {"vocab_size": 50, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64}, "words"),
    ("bert", "BertForMaskedLM", "BertConfig", _SMALL, "words"),
    ("bert_classes", "BertForSequenceClassification", "BertConfig", {**_SMALL, "num_labels": 5}, "class"),
    ("bert_tokens", "BertForTokenClassification", "BertConfig", {**_SMALL, "num_labels": 50}, "words"),
    ("roberta", "RobertaForMaskedLM", "RobertaConfig", _SMALL, "words"),
    ("xlm_roberta", "XLMRobertaForMaskedLM", "XLMRobertaConfig", _SMALL, "words"),
    ("camembert", "CamembertForMaskedLM", "CamembertConfig", _SMALL, "words"),
    ("distilbert", "DistilBertForMaskedLM", "DistilBertConfig", {"vocab_size": 50, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}, "words"),
    ("albert", "AlbertForMaskedLM", "AlbertConfig", {**_SMALL, "embedding_size": 16}, "words"),
    ("electra", "ElectraForMaskedLM", "ElectraConfig", {**_SMALL, "embedding_size": 16}, "words"),
    ("mobilebert", "MobileBertForMaskedLM", "MobileBertConfig", {**_SMALL, "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16}, "words"),
    ("deberta", "DebertaForMaskedLM", "DebertaConfig", _SMALL, "words"),
    ("deberta_v2", "DebertaV2ForMaskedLM", "DebertaV2Config", _SMALL, "words"),
    ("mpnet", "MPNetForMaskedLM", "MPNetConfig", _SMALL, "words"),
    ("squeezebert", "SqueezeBertForMaskedLM", "SqueezeBertConfig", {**_SMALL, "embedding_size": 32}, "words"),
    ("ernie", "ErnieForMaskedLM", "ErnieConfig", _SMALL, "words"),
    ("roformer", "RoFormerForMaskedLM", "RoFormerConfig", _SMALL, "words"),
    ("fnet", "FNetForMaskedLM", "FNetConfig", {key: value for key, value in _SMALL.items() if key != "num_attention_heads"}, "words"),
    ("modernbert", "ModernBertForMaskedLM", "ModernBertConfig", _SMALL, "words"),
    ("t5", "T5ForConditionalGeneration", "T5Config", _T5, "words"),
    ("mt5", "MT5ForConditionalGeneration", "MT5Config", _T5, "words"),
    ("bart", "BartForConditionalGeneration", "BartConfig", _D_MODEL, "words"),
    ("mbart", "MBartForConditionalGeneration", "MBartConfig", _D_MODEL, "words"),
    ("pegasus", "PegasusForConditionalGeneration", "PegasusConfig", {**_D_MODEL, "decoder_start_token_id": 0}, "words"),
    ("marian", "MarianMTModel", "MarianConfig", {**_D_MODEL, "decoder_start_token_id": 0}, "words"),
    ("blenderbot_small", "BlenderbotSmallForConditionalGeneration", "BlenderbotSmallConfig", _D_MODEL, "words"),
    ("vit", "ViTForImageClassification", "ViTConfig", _PICTURES, "pictures"),
    ("deit", "DeiTForImageClassification", "DeiTConfig", _PICTURES, "pictures"),
    ("beit", "BeitForImageClassification", "BeitConfig", _PICTURES, "pictures"),
    ("dinov2", "Dinov2ForImageClassification", "Dinov2Config", _PICTURES, "pictures"),
    ("convnext", "ConvNextForImageClassification", "ConvNextConfig", {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 2, 1], "num_labels": 5}, "pictures"),
    ("resnet", "ResNetForImageClassification", "ResNetConfig", {"embedding_size": 8, "hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 1, 1], "num_labels": 5}, "pictures"),
    ("segformer", "SegformerForImageClassification", "SegformerConfig", {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 1, 1], "num_labels": 5, "decoder_hidden_size": 16}, "pictures"),
    ("swin", "SwinForImageClassification", "SwinConfig", {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "num_labels": 5}, "pictures"),
    ("mobilevit", "MobileViTForImageClassification", "MobileViTConfig", {"image_size": 32, "num_labels": 5}, "pictures"),
    ("wav2vec2", "Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", _SOUND, "sound"),
]

#: Further ones, with settings of their own.
TRANSFORMERS += [
    ("xlnet", "XLNetLMHeadModel", "XLNetConfig", {"vocab_size": 50, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}, "words"),
    ("xlm", "XLMWithLMHeadModel", "XLMConfig", {"vocab_size": 50, "emb_dim": 32, "n_layers": 2, "n_heads": 4}, "words"),
    ("funnel", "FunnelForMaskedLM", "FunnelConfig", {"vocab_size": 50, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64, "block_sizes": [1, 1]}, "words"),
    ("convbert", "ConvBertForMaskedLM", "ConvBertConfig", _SMALL, "words"),
    ("rembert", "RemBertForMaskedLM", "RemBertConfig", {**_SMALL, "input_embedding_size": 16, "output_embedding_size": 16}, "words"),
    ("megatron_bert", "MegatronBertForMaskedLM", "MegatronBertConfig", _SMALL, "words"),
    ("big_bird", "BigBirdForMaskedLM", "BigBirdConfig", {**_SMALL, "attention_type": "original_full"}, "words"),
    ("data2vec_text", "Data2VecTextForMaskedLM", "Data2VecTextConfig", _SMALL, "words"),
    ("xmod", "XmodForMaskedLM", "XmodConfig", {**_SMALL, "default_language": "en_XX"}, "words"),
    ("layoutlm", "LayoutLMForMaskedLM", "LayoutLMConfig", _SMALL, "words"),
    ("mvp", "MvpForConditionalGeneration", "MvpConfig", _D_MODEL, "words"),
    ("plbart", "PLBartForConditionalGeneration", "PLBartConfig", _D_MODEL, "words"),
    ("m2m_100", "M2M100ForConditionalGeneration", "M2M100Config", {**_D_MODEL, "decoder_start_token_id": 2}, "words"),
    ("umt5", "UMT5ForConditionalGeneration", "UMT5Config", _T5, "words"),
    ("prophetnet", "ProphetNetForConditionalGeneration", "ProphetNetConfig", {"vocab_size": 50, "hidden_size": 32, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "pad_token_id": 0, "decoder_start_token_id": 1}, "words"),
    ("biogpt", "BioGptForCausalLM", "BioGptConfig", _SMALL, "words"),
    ("ctrl", "CTRLLMHeadModel", "CTRLConfig", {**_GPT, "dff": 64}, "words"),
    ("openai_gpt", "OpenAIGPTLMHeadModel", "OpenAIGPTConfig", _GPT, "words"),
    ("rwkv", "RwkvForCausalLM", "RwkvConfig", {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 64}, "words"),
    ("persimmon", "PersimmonForCausalLM", "PersimmonConfig", _SMALL, "words"),
    ("qwen2_moe", "Qwen2MoeForCausalLM", "Qwen2MoeConfig", {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}, "words"),
    ("olmoe", "OlmoeForCausalLM", "OlmoeConfig", {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2}, "words"),
    ("deepseek_v3", "DeepseekV3ForCausalLM", "DeepseekV3Config", {**_SMALL, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "moe_intermediate_size": 32}, "words"),
    ("gpt_oss", "GptOssForCausalLM", "GptOssConfig", {**_HEADED, "num_local_experts": 4, "num_experts_per_tok": 2}, "words"),
    ("mamba2", "Mamba2ForCausalLM", "Mamba2Config", {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 4}, "words"),
    ("falcon_mamba", "FalconMambaForCausalLM", "FalconMambaConfig", {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}, "words"),
    ("glm", "GlmForCausalLM", "GlmConfig", _HEADED, "words"),
    ("helium", "HeliumForCausalLM", "HeliumConfig", _HEADED, "words"),
    ("granitemoe", "GraniteMoeForCausalLM", "GraniteMoeConfig", {**_GROUPED, "num_local_experts": 4}, "words"),
    ("exaone4", "Exaone4ForCausalLM", "Exaone4Config", _GROUPED, "words"),
    ("recurrent_gemma", "RecurrentGemmaForCausalLM", "RecurrentGemmaConfig", {**_HEADED, "lru_width": 32, "attention_window_size": 8}, "words"),
    ("lfm2", "Lfm2ForCausalLM", "Lfm2Config", _GROUPED, "words"),
    ("bitnet", "BitNetForCausalLM", "BitNetConfig", _GROUPED, "words"),
    ("mobilenet_v1", "MobileNetV1ForImageClassification", "MobileNetV1Config", {"num_labels": 5, "depth_multiplier": 0.25}, "pictures"),
    ("regnet", "RegNetForImageClassification", "RegNetConfig", {"embedding_size": 8, "hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 1, 1], "groups_width": 4, "num_labels": 5}, "pictures"),
    ("poolformer", "PoolFormerForImageClassification", "PoolFormerConfig", {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 1, 1], "num_labels": 5}, "pictures"),
    ("focalnet", "FocalNetForImageClassification", "FocalNetConfig", {"image_size": 32, "patch_size": 4, "embed_dim": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "focal_levels": [2, 2], "focal_windows": [3, 3], "num_labels": 5}, "pictures"),
    ("pvt", "PvtForImageClassification", "PvtConfig", {"image_size": 32, "hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 1, 1], "num_labels": 5, "num_attention_heads": [1, 2, 2, 4]}, "pictures"),
    ("swinv2", "Swinv2ForImageClassification", "Swinv2Config", {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "num_labels": 5}, "pictures"),
    ("convnextv2", "ConvNextV2ForImageClassification", "ConvNextV2Config", {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 2, 1], "num_labels": 5}, "pictures"),
    ("data2vec_vision", "Data2VecVisionForImageClassification", "Data2VecVisionConfig", _PICTURES, "pictures"),
    ("vit_msn", "ViTMSNForImageClassification", "ViTMSNConfig", _PICTURES, "pictures"),
    ("dinov2_with_registers", "Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", _PICTURES, "pictures"),
    ("bit", "BitForImageClassification", "BitConfig", {"embedding_size": 8, "hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 1, 1], "num_groups": 4, "num_labels": 5}, "pictures"),
    ("ijepa", "IJepaForImageClassification", "IJepaConfig", _PICTURES, "pictures"),
    ("siglip", "SiglipForImageClassification", "SiglipConfig", {"vision_config": {key: value for key, value in _PICTURES.items() if key != "num_labels"}, "num_labels": 5}, "pictures"),
    ("clip", "CLIPForImageClassification", "CLIPConfig", {"vision_config": {key: value for key, value in _PICTURES.items() if key != "num_labels"}, "num_labels": 5}, "pictures"),
    ("hubert", "HubertForSequenceClassification", "HubertConfig", _SOUND, "sound"),
    ("wavlm", "WavLMForSequenceClassification", "WavLMConfig", _SOUND, "sound"),
    ("sew", "SEWForSequenceClassification", "SEWConfig", _SOUND, "sound"),
]


def _told(model: str, config: str, settings: dict[str, Any], given: str) -> Callable[[], Made]:
    def made() -> Made:
        import transformers

        module = getattr(transformers, model)(getattr(transformers, config)(**settings))
        with torch.no_grad():
            for parameter in module.parameters():
                # A router of experts that begins with zeros has ties, which may be broken either way.
                if parameter.dim() > 1 and not parameter.any():
                    parameter.normal_(0.0, 0.02)
        if given.startswith("pictures"):
            size = int(given.removeprefix("pictures") or 32)
            return Told(module, "pixel_values", {}), (torch.randn(2, 3, size, size), torch.tensor([1, 3]))
        if given == "sound":
            return Told(module, "input_values", {}), (torch.randn(2, 400), torch.tensor([1, 3]))
        tokens = torch.randint(2, 50, (2, 12))
        cached = {"use_cache": False} if hasattr(module.config, "use_cache") else {}
        if given == "class":
            return Told(module, "input_ids", cached), (tokens, torch.tensor([0, 1]))
        return Told(module, "input_ids", cached), (tokens, tokens.clone())

    return made


def _transformers() -> Iterator[tuple[str, Callable[[], Made]]]:
    for name, model, config, settings, given in TRANSFORMERS:
        yield f"transformers/{name}", _told(model, config, settings, given)
    yield from small(_told)


#: By library: the names of its models with what makes them. Nothing is imported before it is asked for.
LIBRARIES = {"torchvision": _torchvision, "timm": _timm, "transformers": _transformers, "written": written, "torch.nn": parts}
