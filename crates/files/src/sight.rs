//! What `config.json` says of a model's tower over images, and of where their vectors are in a text.

use crate::config::{Config, FFN_MAX, HEADS_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX, unsupported};
use crate::wrapped;
use plimsoll_arch::{
    DeepLayers, Gate, Gelu, ModelSpec, PIXEL_CHANNELS, RopeAxes, SightSpec, TokenRun, TowerMlp, TowerNorm,
    TowerSpec, TowerWindow,
};
use plimsoll_base::Result;
use serde_json::{Value, json};

/// Maximum pixels of a patch's side.
const PATCH_MAX: u64 = 64;
/// Maximum patches of a vector's side.
const MERGE_MAX: u64 = 8;
/// Maximum frames of a patch.
const FRAMES_MAX: u64 = 8;
/// Maximum learned positions.
const POSITIONS_MAX: u64 = 1 << 20;
/// Maximum elements of a head of a tower.
const HEAD_DIM_MAX: u32 = 256;
/// Epsilon of a tower's norms; no file has it.
const TOWER_EPS: f32 = 1e-6;

/// Pixels of a window's side that a file may ask for.
const WINDOW_MAX: u64 = 1 << 14;

/// How a tower is built, and its rows are rotated in a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Learned positions, norms by mean and variance, plain feed-forward parts; heads take places woven.
    Qwen3,
    /// Windows, norms by the root of the mean square, gated feed-forward parts; heads take places in runs.
    Qwen25,
}

/// A model of text and images whose tower is read: what its files leave out.
struct Seeing {
    /// `model_type` of the whole model.
    model_type: &'static str,
    kind: Kind,
    /// Layers of the tower that give further features.
    deep: &'static [u32],
    /// Pairs of a head that take time, height and width.
    pairs: [u32; 3],
    /// The token of an image's vectors, and those around them.
    tokens: [u32; 3],
}

const QWEN3_VL: Seeing = Seeing {
    model_type: "qwen3_vl",
    kind: Kind::Qwen3,
    deep: &[8, 16, 24],
    pairs: [24, 20, 20],
    tokens: [151_655, 151_652, 151_653],
};
const QWEN3_5: Seeing = Seeing {
    model_type: "qwen3_5",
    deep: &[],
    pairs: [11, 11, 10],
    tokens: [248_056, 248_053, 248_054],
    ..QWEN3_VL
};
const SEEING: [Seeing; 5] = [
    QWEN3_VL,
    Seeing { model_type: "qwen3_vl_moe", ..QWEN3_VL },
    QWEN3_5,
    Seeing { model_type: "qwen3_5_moe", ..QWEN3_5 },
    Seeing { model_type: "qwen2_5_vl", kind: Kind::Qwen25, deep: &[], pairs: [16, 24, 24], ..QWEN3_VL },
];

fn seeing(config: &Value) -> Option<&'static Seeing> {
    let model_type = config.get("model_type")?.as_str()?;
    SEEING.iter().find(|row| row.model_type == model_type)
}

/// Reads how a model takes images from the `config.json` of the whole, whose language model is `text`; none for
/// families whose towers are not read. Messages call the configuration `file`.
///
/// Errors: `model-config-invalid`, `model-unsupported`.
pub fn sight_from_config(config: &Value, text: &ModelSpec, file: &str) -> Result<Option<SightSpec>> {
    let (Some(row), Some(whole)) = (seeing(config), config.as_object()) else { return Ok(None) };
    let Some(vision) = config.get("vision_config").and_then(Value::as_object) else { return Ok(None) };
    let whole = Config::bare(whole, file);
    let token = |key: &str, default: u32| match whole.present(key).map(Value::as_u64) {
        None => Ok(default),
        Some(Some(id)) if id < VOCAB_MAX => Ok(id as u32),
        Some(_) => Err(whole.invalid(format!("{key} is no token"))),
    };
    let [image, before, after] = row.tokens;
    let pairs = pairs(config, row, text, &whole)?;
    let vision = Config::bare(vision, file);
    let (tower, axes) = match row.kind {
        Kind::Qwen3 => (tower(&vision, row)?, RopeAxes::Woven(pairs)),
        Kind::Qwen25 => (tower_of_windows(&vision)?, RopeAxes::Runs(pairs)),
    };
    check(&vision, &tower, text)?;
    let image_token = token("image_token_id", image)?;
    // In published files they are next to each other.
    let films = token("video_token_id", image + 1)?;
    let placeholders = match films.abs_diff(image_token) {
        1 => TokenRun { first: films.min(image_token), count: 2 },
        _ => TokenRun::one(image_token),
    };
    Ok(Some(SightSpec {
        tower,
        axes,
        image_token,
        around: [token("vision_start_token_id", before)?, token("vision_end_token_id", after)?],
        placeholders,
    }))
}

/// Reads the sizes of a tower. Source: transformers `configuration_qwen3_vl.py`, `configuration_qwen3_5.py`.
fn tower(config: &Config<'_>, row: &Seeing) -> Result<TowerSpec> {
    let act = match act(config, "gelu_pytorch_tanh") {
        "gelu_pytorch_tanh" => Gelu::Tanh,
        "gelu" => Gelu::Erf,
        other => {
            return Err(unsupported(config.file, "hidden_act", &json!(other), "gelu_pytorch_tanh or gelu"));
        }
    };
    let positions = config.size_or("num_position_embeddings", POSITIONS_MAX, 2304)?;
    let side = positions.isqrt();
    if side * side != positions {
        return Err(config.invalid(format!("num_position_embeddings = {positions} is no square")));
    }
    Ok(TowerSpec {
        depth: config.size_or("depth", LAYERS_MAX, 27)?,
        hidden: config.size_or("hidden_size", WIDTH_MAX, 1152)?,
        ffn: config.size_or("intermediate_size", FFN_MAX, 4304)?,
        patch: config.size_or("patch_size", PATCH_MAX, 16)?,
        positions: Some(side),
        patch_bias: true,
        norm: TowerNorm::Layer,
        mlp: TowerMlp::Plain(act),
        window: None,
        deep: deep(config, row)?,
        ..common(config)?
    })
}

/// Reads the sizes of Qwen2.5-VL's tower. Source: transformers `configuration_qwen2_5_vl.py`, whose default width is
/// not that of any published tower.
fn tower_of_windows(config: &Config<'_>) -> Result<TowerSpec> {
    let act = act(config, "silu");
    if act != "silu" {
        return Err(unsupported(config.file, "hidden_act", &json!(act), "silu"));
    }
    let common = common(config)?;
    let pixels = config.size_or("window_size", WINDOW_MAX, 112)?;
    if pixels < common.patch * common.merge {
        let of = common.patch * common.merge;
        return Err(config.invalid(format!("window_size = {pixels} is less than a vector's {of} pixels")));
    }
    let key = "fullatt_block_indexes";
    let whole = layers(config, key, &[7, 15, 23, 31])?;
    if let Some(layer) = whole.iter().find(|&&layer| layer >= common.depth) {
        return Err(config.invalid(format!("{key} has {layer} of {} layers", common.depth)));
    }
    let window = TowerWindow { pixels, whole: whole.into_iter().collect() };
    Ok(TowerSpec { window: Some(window), ..common })
}

/// Reads what all towers have, with Qwen2.5-VL's parts.
fn common(config: &Config<'_>) -> Result<TowerSpec> {
    // Published files of Qwen2.5-VL have the older name.
    for key in ["in_channels", "in_chans"] {
        let channels = config.size_or(key, 1 << 10, PIXEL_CHANNELS)?;
        if channels != PIXEL_CHANNELS {
            return Err(unsupported(config.file, key, &json!(channels), "3"));
        }
    }
    Ok(TowerSpec {
        depth: config.size_or("depth", LAYERS_MAX, 32)?,
        hidden: config.size_or("hidden_size", WIDTH_MAX, 1280)?,
        heads: config.size_or("num_heads", HEADS_MAX, 16)?,
        ffn: config.size_or("intermediate_size", FFN_MAX, 3420)?,
        patch: config.size_or("patch_size", PATCH_MAX, 14)?,
        merge: config.size_or("spatial_merge_size", MERGE_MAX, 2)?,
        frames: config.size_or("temporal_patch_size", FRAMES_MAX, 2)?,
        out: config.size_or("out_hidden_size", WIDTH_MAX, 3584)?,
        positions: None,
        patch_bias: false,
        norm: TowerNorm::Rms,
        eps: TOWER_EPS,
        mlp: TowerMlp::Gated(Gate::Silu),
        window: None,
        rope_theta: rope_theta(config)?,
        deep: DeepLayers::NONE,
    })
}

/// Returns the name of the activation.
fn act<'a>(config: &'a Config<'_>, default: &'a str) -> &'a str {
    config.present("hidden_act").and_then(Value::as_str).unwrap_or(default)
}

fn rope_theta(config: &Config<'_>) -> Result<f64> {
    match config.present("rope_parameters").and_then(Value::as_object) {
        Some(rule) => Config::bare(rule, config.file).positive("rope_theta", 1e4),
        None => Ok(1e4),
    }
}

fn deep(config: &Config<'_>, row: &Seeing) -> Result<DeepLayers> {
    let key = "deepstack_visual_indexes";
    let layers = layers(config, key, row.deep)?;
    DeepLayers::of(&layers).ok_or_else(|| unsupported(config.file, key, &json!(layers), "up to 4, ascending"))
}

/// Reads a list of layers.
fn layers(config: &Config<'_>, key: &str, default: &[u32]) -> Result<Vec<u32>> {
    let layers = match config.present(key) {
        None => Some(default.to_vec()),
        Some(Value::Array(list)) if list.len() <= LAYERS_MAX as usize => {
            list.iter().map(|layer| layer.as_u64().and_then(|layer| u32::try_from(layer).ok())).collect()
        }
        Some(_) => None,
    };
    layers.ok_or_else(|| config.invalid(format!("{key} is no list of layers")))
}

fn check(config: &Config<'_>, tower: &TowerSpec, text: &ModelSpec) -> Result<()> {
    let TowerSpec { hidden, heads, depth, out, .. } = *tower;
    if !hidden.is_multiple_of(heads) || !(hidden / heads).is_multiple_of(4) {
        let what = format!("hidden_size = {hidden} over num_heads = {heads} is no multiple of 4");
        return Err(config.invalid(what));
    }
    if tower.head_dim() > HEAD_DIM_MAX {
        let built = format!("{HEAD_DIM_MAX} elements a head at most");
        return Err(unsupported(config.file, "num_heads", &json!(heads), &built));
    }
    if out != text.hidden {
        return Err(config.invalid(format!("out_hidden_size = {out}, the text has {}", text.hidden)));
    }
    let deep = tower.deep.as_slice();
    if let Some(layer) = deep.iter().find(|&&layer| layer >= depth) {
        return Err(config.invalid(format!("deepstack_visual_indexes has {layer} of {depth} layers")));
    }
    if deep.len() > text.layers.len() as usize {
        let what = format!("{} sets of features for {} layers of text", deep.len(), text.layers.len());
        return Err(config.invalid(what));
    }
    Ok(())
}

/// Reads the pairs of a head that take time, height and width.
fn pairs(config: &Value, row: &Seeing, text: &ModelSpec, whole: &Config<'_>) -> Result<[u32; 3]> {
    let of_text = wrapped::of_text(config);
    let rule = of_text.as_ref().and_then(wrapped::rope_rule);
    let Some(written) = rule.and_then(|rule| rule.get("mrope_section")) else {
        return Ok(row.pairs);
    };
    let numbers = written.as_array().filter(|list| list.len() == 3);
    let number = |n: &Value| n.as_u64().filter(|n| *n < WIDTH_MAX);
    let numbers: Option<Vec<u64>> = numbers.and_then(|list| list.iter().map(number).collect());
    let Some(pairs) = numbers else {
        return Err(whole.invalid("mrope_section is no list of three numbers".into()));
    };
    let pairs = [pairs[0] as u32, pairs[1] as u32, pairs[2] as u32];
    let all = text.rotary_width() / 2;
    if pairs.iter().sum::<u32>() != all {
        return Err(whole.invalid(format!("mrope_section = {pairs:?} is of {all} pairs of a head")));
    }
    Ok(pairs)
}
