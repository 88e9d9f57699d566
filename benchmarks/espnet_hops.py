"""Throughput of recognition against the hop of ``cape_fbank``, in one run.

python benchmarks/espnet_hops.py [--paper-size] [--device cuda] [--dtype bfloat16] [--rounds 15]

From samples to the likeliest token of each frame: features, encoder, CTC; random weights, noise
for audio. For WER against throughput of a trained model: studies/data/score_recordings.py.
"""

import torch
from espnet2.asr.ctc import CTC
from espnet2.layers.utterance_mvn import UtteranceMVN
from tabulate import tabulate

from cape_plugins.espnet.paper.frontend import CapeFbank
from cape_plugins.espnet.paper.model import CapeASRModel
from cape_plugins.espnet.transformer import SpeechTransformerEncoder
from cape_plugins.variants import names
from common import autocast, command, machine, take_turns

RATE = 16000
TOKENS = ["<blank>", "<unk>", "<space>", "'", *"abcdefghijklmnopqrstuvwxyz", "<sos/eos>"]
SMALL = dict(output_size=256, attention_heads=4, linear_units=1024, num_blocks=4)
NOMINAL_MS = 10.0


def main() -> None:
    """Measure and print."""
    parser = command(__doc__, rounds=15)
    parser.add_argument("--paper-size", action="store_true", help="36 layers of 768 channels")
    parser.add_argument("--layers", type=int, metavar="N", help="fewer than the whole")
    parser.add_argument("--pos", default="cape", choices=names(1))
    parser.add_argument("--hops", nargs="+", type=float, metavar="MS",
                        default=(5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20))  # fmt: skip
    parser.add_argument("--seconds", type=int, default=20, help="of each utterance")
    parser.add_argument("--batch-size", type=int, default=1, help="the paper evaluates with 1")
    arguments = parser.parse_args()
    if NOMINAL_MS not in arguments.hops:
        parser.error(f"the others are compared with {NOMINAL_MS:g} ms: --hops needs it")
    sizes = {} if arguments.paper_size else dict(SMALL)
    if arguments.layers is not None:
        sizes["num_blocks"] = arguments.layers
    model = build(arguments.pos, sizes).to(arguments.device).eval()
    samples = arguments.seconds * RATE
    speech = 0.1 * torch.randn(arguments.batch_size, samples, device=arguments.device)
    lengths = torch.full((arguments.batch_size,), samples, device=arguments.device)

    @torch.inference_mode()
    def recognise(milliseconds: float) -> None:
        model.frontend.hop_length = round(milliseconds * RATE / 1000)
        with autocast(arguments):
            out, _ = model.encode(speech, lengths)
            model.ctc.argmax(out).cpu()

    hops = {f"{hop:g}": hop for hop in sorted(arguments.hops)}
    candidates = {name: lambda hop=hop: recognise(hop) for name, hop in hops.items()}
    unit, cost = take_turns(candidates, f"{NOMINAL_MS:g}", arguments.rounds)
    audio = arguments.batch_size * arguments.seconds
    rows = [[hop, audio / (unit * cost[hop]), 1 / cost[hop]] for hop in hops]
    print(
        f"{machine(arguments.device)}, {arguments.dtype}; {arguments.pos}, "
        f"{len(model.encoder.encoders)} layers of {model.encoder.output_size()} channels; "
        f"{arguments.batch_size} × {arguments.seconds} s of audio\n"
    )
    head = ["hop (ms)", "seconds of audio per second", f"of that at {NOMINAL_MS:g} ms"]
    print(tabulate(rows, head, tablefmt="github", floatfmt=("", ".1f", ".2f")))


def build(pos: str, sizes: dict[str, int]) -> CapeASRModel:
    """A CTC model with random weights; the encoder has the paper's size where none is given."""
    frontend = CapeFbank(fs=RATE)
    encoder = SpeechTransformerEncoder(frontend.output_size(), pos=pos, **sizes)
    return CapeASRModel(
        vocab_size=len(TOKENS),
        token_list=TOKENS,
        frontend=frontend,
        specaug=None,
        normalize=UtteranceMVN(norm_means=True, norm_vars=True),
        preencoder=None,
        encoder=encoder,
        postencoder=None,
        decoder=None,
        ctc=CTC(odim=len(TOKENS), encoder_output_size=encoder.output_size()),
        joint_network=None,
        ctc_weight=1.0,
    )


if __name__ == "__main__":
    main()
