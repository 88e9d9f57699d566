"""Conditions of a test in words, for the terminal and for legends."""

#: column → its words; others stand beside the column's name
_SPOKEN = {
    **dict.fromkeys(("checkpoint", "model", "variant", "model_kwargs", "dataset"), "{}"),
    **dict.fromkeys(("strategy", "bin", "interpolation", "precision"), "{}"),
    "max_global_shift": "Δ {}",
    "max_local_shift": "ε {}",
    "max_global_scale": "λ {}",
    "frequency_scale": "frequencies × {}",
    "train_size": "trained at {}",
    "resolution": "{} px",
    "seq_len": "≤ {} patches",
    "extent": "γ {}",
    "attention_logn": "log N / log {}",
    "tta_step": "± {} px",
    "crop_pct": "crop {}",
}


def spoken(name: str, value: str) -> str:
    """A condition, as it stands in the CSV, in words; empty where there is nothing to say."""
    if name in ("tta", "ema"):
        return name.upper() if value == "1" else ""
    if name == "abspos_antialias" and value:
        return "antialiased" if value == "1" else "not antialiased"
    return _SPOKEN.get(name, f"{name} {{}}").format(value) if value else ""
