"""Converters of datasets whose rows already have one of the formats of ``mmr1.data.forms``.

Each is a row of facts: the row format, and the task type where the rows do not state it. A dataset
that needs code of its own has a file of its own beside this one.
"""

from __future__ import annotations

from datasets_prep.converters.base import ROW_FILES, Converter, of_form

clevr_70k = Converter(
    name="clevr_70k",
    description="CLEVR-70k counting (R1-V)",
    source="leonardPKU/clevr_cogen_a_train on the Hugging Face Hub",
    licence="CC BY 4.0 (CLEVR)",
    files=ROW_FILES,
    convert=of_form("r1_v", task="count"),
)
"""CLEVR counting of R1-V: the count is inside the answer tag of the solution."""

deepeyes = Converter(
    name="deepeyes",
    description="DeepEyes-Datasets-47k: questions about details, charts and mathematics",
    source="ChenShawn/DeepEyes-Datasets-47k on the Hugging Face Hub",
    licence="not stated here; see the dataset card",
    files=ROW_FILES,
    convert=of_form("verl", task="math"),
)
"""DeepEyes, verl form: a system prompt that describes a tool, a picture, a short answer."""

easyr1 = Converter(
    name="easyr1",
    description="any dataset in EasyR1 form: problem, answer, images or videos",
    source="yours",
    licence="that of the dataset",
    files=ROW_FILES,
    convert=of_form("easyr1"),
)
"""Any dataset in the format that EasyR1 reads."""

geometry3k_hub = Converter(
    name="geometry3k_hub",
    description="Geometry3K, Hub form (parquet): geometry problems with a value",
    source="hiyouga/geometry3k on the Hugging Face Hub",
    licence="MIT (InterGPS)",
    files=ROW_FILES,
    convert=of_form("easyr1", task="math"),
)
"""Geometry3K on the Hub for EasyR1: a problem with tags, embedded images, a value."""

geoqa_8k = Converter(
    name="geoqa_8k",
    description="GEOQA-8K geometry (R1-V)",
    source="leonardPKU/GEOQA_R1V_Train_8K on the Hugging Face Hub",
    licence="Apache-2.0 (R1-V); GeoQA for research",
    files=ROW_FILES,
    convert=of_form("r1_v", task="math"),
)
"""GEOQA training rows of R1-V: an answer such as 145° inside the answer tag."""

geoqa_eval = Converter(
    name="geoqa_eval",
    description="GeoQA, evaluation rows of R1-V",
    source="R1-V src/eval/prompts",
    licence="Apache-2.0 (R1-V); GeoQA for research",
    files=("geoqa*.jsonl",),
    convert=of_form("r1_v_eval", task="math"),
)
"""The GeoQA questions that R1-V evaluates on: an angle or a length."""

journeybench = Converter(
    name="journeybench",
    description="Journeybench multi-image problems, EasyR1 form",
    source="hiyouga/journeybench-multi-image-vqa on the Hugging Face Hub",
    licence="not stated; see the dataset card",
    files=ROW_FILES,
    convert=of_form("easyr1", task="math"),
)
"""Journeybench multi-image arithmetic in EasyR1 form: two tagged images, a value."""

lmm_r1 = Converter(
    name="lmm_r1",
    description="LMM-R1 VerMulti",
    source="VLM-Reasoner/VerMulti on the Hugging Face Hub",
    licence="Apache-2.0 (LMM-R1); its images have their own terms",
    files=ROW_FILES,
    convert=of_form("lmm_r1", task="math"),
)
"""LMM-R1 VerMulti: a conversation as a JSON string, the image after the text, a boxed answer."""

multimodal_open_r1 = Converter(
    name="multimodal_open_r1",
    description="multimodal-open-r1-8k-verified",
    source="lmms-lab/multimodal-open-r1-8k-verified on the Hugging Face Hub",
    licence="Apache-2.0",
    files=ROW_FILES,
    convert=of_form("r1_v", task="math"),
)
"""multimodal-open-r1-8k: reasoning problems whose solution ends in the answer tag."""

openrlhf = Converter(
    name="openrlhf",
    description="any dataset in OpenRLHF form: prompt, images, label",
    source="yours",
    licence="that of the dataset",
    files=ROW_FILES,
    convert=of_form("openrlhf"),
)
"""Any dataset in the format that OpenRLHF reads."""

r1_onevision = Converter(
    name="r1_onevision",
    description="R1-Onevision reasoning demonstrations",
    source="Fancy-MLLM/R1-Onevision on the Hugging Face Hub",
    licence="Apache-2.0",
    files=ROW_FILES,
    convert=of_form("vlm_r1"),
)
"""R1-Onevision: embedded images (base64, or none) and long reasoning as demonstrations."""

sharegpt = Converter(
    name="sharegpt",
    description="conversations with media in ShareGPT form (demonstrations)",
    source="LLaMA-Factory data/",
    licence="Apache-2.0 (LLaMA-Factory)",
    files=("mllm*.json", "*.jsonl"),
    convert=of_form("sharegpt"),
)
"""Conversations with media, as LLaMA-Factory reads them."""

superclevr_eval = Converter(
    name="superclevr_eval",
    description="SuperCLEVR counting, evaluation rows of R1-V",
    source="R1-V src/eval/prompts",
    licence="Apache-2.0 (R1-V); BSD and CC BY 4.0 (Super-CLEVR)",
    files=("superclevr*.jsonl",),
    convert=of_form("r1_v_eval", task="count"),
)
"""The SuperCLEVR counting questions that R1-V evaluates on."""

trl = Converter(
    name="trl",
    description="any dataset in TRL form: prompt (chat), image or images",
    source="yours",
    licence="that of the dataset",
    files=ROW_FILES,
    convert=of_form("trl"),
)
"""Any dataset in the format that TRL reads."""

verl_geo3k = Converter(
    name="verl_geo3k",
    description="Geometry3K as verl preprocesses it (parquet)",
    source="verl examples/data_preprocess/geo3k.py",
    licence="MIT (InterGPS)",
    files=ROW_FILES,
    convert=of_form("verl", task="math"),
)
"""Geometry3K after verl's preprocessing."""

video_r1 = Converter(
    name="video_r1",
    description="Video-R1-260k and Video-R1-COT-165k",
    source="Video-R1/Video-R1-data on the Hugging Face Hub",
    licence="Apache-2.0 by its card; its source datasets have their own terms",
    files=ROW_FILES,
    convert=of_form("video_r1"),
)
"""Video-R1: videos and images, six types of problem; the COT rows have chains of thought."""

vlm_r1_multi_image = Converter(
    name="vlm_r1_multi_image",
    description="multi-image GUI defects (VLM-R1)",
    source="VLM-R1 data_jsonl/gui_multi-image.jsonl",
    licence="Apache-2.0 (VLM-R1)",
    files=ROW_FILES,
    convert=of_form("vlm_r1", task="exact"),
)
"""VLM-R1 multi-image: two images and no placeholder; the reply is the answer."""

vlm_r1_rec = Converter(
    name="vlm_r1_rec",
    description="RefCOCO and LISA rows of VLM-R1 (evaluation form)",
    source="omlab/VLM-R1 on the Hugging Face Hub",
    licence="Apache-2.0 (VLM-R1); RefCOCO and COCO annotation terms",
    files=ROW_FILES,
    convert=of_form("rec", task="iou"),
)
"""VLM-R1 referring expressions: boxes in pixels of the original image."""

mathvista = Converter(
    name="mathvista",
    description="MathVista testmini: mathematics in pictures of many kinds",
    source="AI4Math/MathVista on the Hugging Face Hub",
    licence="CC BY-SA 4.0; may not be used as training data",
    files=("testmini*.json", "*.json", "*.parquet"),
    convert=of_form("mathvista"),
)
"""MathVista: multiple choice answered by the option's text, and numbers with a precision."""

super_clevr = Converter(
    name="super_clevr",
    description="Super-CLEVR: questions about rendered vehicles",
    source="Lizw14/Super-CLEVR",
    licence="BSD (code); questions CC BY 4.0",
    files=("superCLEVR_questions*.json",),
    convert=of_form("clevr"),
)
"""Super-CLEVR: questions about rendered scenes; a word, a number or yes and no."""

mmmu = Converter(
    name="mmmu",
    description="MMMU: questions of college subjects with up to seven pictures",
    source="MMMU/MMMU on the Hugging Face Hub",
    licence="Apache-2.0 by its card; its sources have their own terms",
    files=("**/validation*.parquet", "**/dev*.parquet", *ROW_FILES),
    convert=of_form("mmmu"),
)
"""MMMU: options and open questions; the answers of its test split are withheld."""
