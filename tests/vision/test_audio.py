"""Sound against Python's ``wave``, FFmpeg's command line, and files that are broken."""

from __future__ import annotations

import subprocess
import wave
from pathlib import Path

import numpy as np
import pytest

from mmr1.data.media_values import media_refs
from mmr1.data.record import decode, encode
from mmr1.types import MediaRef
from mmr1.vision.audio import load_audio, wav

RATE = 16_000


def pcm(path: Path, samples: np.ndarray, rate: int = RATE) -> Path:
    """A file of ``[samples, channels]`` int16 or uint8, by Python's own writer."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(samples.dtype.itemsize)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return path


def tone(rate: int, seconds: float = 1.0) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * 440 * np.arange(int(rate * seconds)) / rate)


def load(source: Path | bytes, **options: int) -> np.ndarray:
    path, data = (source, None) if isinstance(source, Path) else (None, source)
    return load_audio(MediaRef("audio", path, data, None, options), RATE, 30.0)


def by_ffmpeg(path: Path) -> np.ndarray:
    command = ["ffmpeg", "-loglevel", "error", "-i", path, "-ac", "1", "-ar", str(RATE)]
    command += ["-f", "f32le", "-"]
    return np.frombuffer(subprocess.run(command, check=True, capture_output=True).stdout, "<f4")


@pytest.mark.parametrize("channels", [1, 2])
def test_every_sample_is_that_of_the_file(tmp_path, channels):
    rng = np.random.default_rng(0)
    whole = rng.integers(-(2**15), 2**15, (RATE, channels)).astype("<i2")
    assert (load(pcm(tmp_path / "a.wav", whole)) == whole.mean(1) / 2**15).all()
    byte = rng.integers(0, 256, (RATE, channels)).astype(np.uint8)
    expected = ((byte.astype(float) - 128).mean(1) / 128).astype(np.float32)
    assert (load(pcm(tmp_path / "b.wav", byte)) == expected).all()


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "ogg", "m4a", "mkv"])
def test_other_rates_and_codecs_are_as_ffmpeg_has_them(tmp_path, suffix):
    (tmp_path / "source.wav").write_bytes(wav(tone(44_100), 44_100))
    file = tmp_path / f"a.{suffix}"
    command = ["ffmpeg", "-loglevel", "error", "-i", tmp_path / "source.wav", file]
    subprocess.run(command, check=True)
    read, expected = load(file), by_ffmpeg(file)
    assert len(read) == len(expected) > 0.95 * RATE
    assert np.abs(read - expected).max() < 1e-6
    assert (load(file.read_bytes()) == read).all()
    assert not load(file, blank=1).any()
    assert np.abs(read).max() > 0.4


def test_arrays_of_a_dataset(tmp_path):
    """What the Audio feature of Hugging Face datasets gives, decoded or not."""
    samples = tone(RATE)
    for value in (samples, samples.tolist(), samples.astype(np.float32)):
        (ref,) = media_refs(
            "audio", {"array": value, "sampling_rate": RATE, "path": None}, tmp_path
        )
        assert (load(ref.read()) == samples.astype(np.float32)).all()
    stereo = np.stack([samples, np.zeros_like(samples)])
    (ref,) = media_refs("audio", {"array": stereo, "sampling_rate": RATE}, tmp_path)
    assert (load(ref.read()) == (stereo.astype(np.float32).mean(0, np.float64))).all()
    (ref,) = media_refs("audio", {"bytes": wav(samples, RATE), "path": "gone.wav"}, tmp_path)
    assert len(load(ref.read())) == RATE
    for value, message in (
        ({"array": samples}, "'sampling_rate' beside it"),
        ({"array": [1, 2], "sampling_rate": RATE}, "whole numbers; scale"),
        ({"array": [np.nan], "sampling_rate": RATE}, "NaN or infinity"),
        ({"array": [], "sampling_rate": RATE}, r"shape \(0,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            media_refs("audio", value, tmp_path)
    with pytest.raises(ValueError, match="only audio is read from one"):
        media_refs("image", {"array": samples, "sampling_rate": RATE}, tmp_path)


def test_what_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "source.wav").write_bytes(wav(tone(44_100), 44_100))
    flac = tmp_path / "a.flac"
    command = ["ffmpeg", "-loglevel", "error", "-i", tmp_path / "source.wav", flac]
    subprocess.run(command, check=True)
    damaged = bytearray(flac.read_bytes())
    damaged[len(damaged) // 2 : len(damaged) // 2 + 40] = bytes(40)
    whole = wav(tone(RATE), RATE)
    for data, message in (
        (b"", "it is empty"),
        (b"#EXTM3U\nhttp://example.org/a.wav\n", "begins with b'#EXTM3U"),
        (whole[: len(whole) // 2], "cut off; get the whole file"),
        (bytes(damaged), "its sound is damaged after 0"),
        (flac.read_bytes()[:-5000], "cut off|cannot be decoded as sound"),
        (wav(tone(RATE, 31), RATE), "lasts longer than 30 s"),
        (wav(tone(RATE, 0.05), RATE), "lasts 0.050 s, less than"),
        (wav(tone(RATE), 500), "500 samples a second"),
    ):
        with pytest.raises(ValueError, match=message):
            load(data)
    with pytest.raises(ValueError, match="'fps' is not one of audio"):
        load(whole, fps=2)


def test_records_with_audio(tmp_path):
    """By the list of the record and where it stands; written again it is the same."""
    pcm(tmp_path / "a.wav", np.zeros((RATE, 1), "<i2"))
    row = {"version": 1, "id": "x", "answer": "low"}
    text = {"role": "user", "content": "<audio>Low or high?"}
    items = [{"type": "audio", "path": "a.wav"}, {"type": "text", "text": "Low or high?"}]
    listed = decode({**row, "messages": [text], "audios": ["a.wav"]}, tmp_path)
    placed = decode({**row, "messages": [{"role": "user", "content": items}]}, tmp_path)
    assert listed == placed == decode(encode(listed, tmp_path), tmp_path)
    assert [ref.kind for ref in placed.media] == ["audio"]
    for messages, audios, message in (
        ([text], [], r"1 <audio> placeholder\(s\) in the messages but 0 audio\(s\)"),
        ([{"role": "user", "content": "Hm?"}], ["a.wav"], r"0 <audio> .* but 1 audio\(s\)"),
        ([text], ["b.wav"], "'b.wav' does not exist"),
        ([{"role": "user", "content": "<|AUDIO|>?"}], [], "own token <|AUDIO|>"),
    ):
        with pytest.raises(ValueError, match=message.replace("|", r"\|")):
            decode({**row, "messages": messages, "audios": audios}, tmp_path)
