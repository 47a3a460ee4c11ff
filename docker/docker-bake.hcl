# The images. From the repository's root, with the commit as a label and in a tag:
#   REVISION=$(git describe --always --dirty --abbrev=40 --exclude='*') docker buildx bake -f docker/docker-bake.hcl cpu
# Bases, the day of Ubuntu's archive and archives that builds fetch are pinned here alone; sources as in stacks.yaml (a
# test compares them). A base without a digest stops its build before anything is fetched. Put in what this prints:
#   docker buildx imagetools inspect quay.io/ascend/cann:9.1.0-910b-ubuntu22.04-py3.12 --format '{{.Manifest.Digest}}'

variable "REPOSITORY" {
  default = "ascend-quant"
}

variable "VERSION" {
  default = "0.1.0"
}

variable "REVISION" {
  default = "unknown"
}

variable "CANN" { # another repository with these tags, where quay.io is not reached: registry-mirrors is for the Hub's
  default = "quay.io/ascend/cann"
}

function "tags" { # the first moves with every build; the last, of one commit, never
  params = [target]
  result = concat(
    ["${REPOSITORY}:${target}", "${REPOSITORY}:${target}-${VERSION}"],
    REVISION == "unknown" ? [] : ["${REPOSITORY}:${target}-${VERSION}-g${REVISION}"],
  )
}

group "default" {
  targets = ["cpu"]
}

group "ascend" {
  targets = ["ascend-cann8_5-a2", "ascend-cann8_5-a3", "ascend-cann9_1-a2", "ascend-cann9_1-a3"]
}

group "all" {
  targets = ["cpu", "ascend", "cuda13"]
}

target "_ours" {
  args = {
    VERSION  = VERSION
    REVISION = REVISION
  }
}

target "cpu" {
  inherits   = ["_ours"]
  dockerfile = "docker/Dockerfile.cpu"
  tags       = tags("cpu")
  args = {
    # For amd64 and arm64; read in a dozen public Dockerfiles. Debian's image names the day of its archive itself.
    BASE  = "docker.io/library/debian:bookworm-slim@sha256:7c7b2c966bc9ee8cedfeef67e0e279108992c77681fa595db4a9d65c06ccc587"
    STACK = "cpu"
  }
}

target "cuda13" {
  inherits   = ["_ours"]
  dockerfile = "docker/Dockerfile.cuda"
  tags       = tags("cuda13")
  args = {
    # For amd64 and arm64; read in public Dockerfiles, likewise. With nvcc, for kernels compiled at run time (DeepGEMM).
    BASE           = "docker.io/nvidia/cuda:13.0.2-devel-ubuntu24.04@sha256:5dc1bca23d05bd37b011be68ec470c03b403a5da07ec3a86e41af9470e9d0cc6"
    STACK          = "cuda13"
    APT_SNAPSHOT   = "20261115T000000Z"
    PYTHON_VERSION = "3.12"
  }
}

# No digest of the CANN images was found in public.
target "_ascend" {
  inherits   = ["_ours"]
  dockerfile = "docker/Dockerfile.ascend"
  args = {
    APT_SNAPSHOT           = "20261115T000000Z"
    VLLM_TARGET_DEVICE     = "empty"
    COMPILE_CUSTOM_KERNELS = "1"
  }
}

target "_a2" {
  args = {
    CHIP        = "A2"
    SOC_VERSION = "ascend910b1"
  }
}

target "_a3" {
  args = {
    CHIP        = "A3"
    SOC_VERSION = "ascend910_9391"
  }
}

target "_ascend-cann8_5" {
  inherits = ["_ascend"]
  args = {
    STACK          = "ascend-cann8.5"
    PYTHON_VERSION = "3.10"
    SOURCES = join(" ", [ # NAME=REPOSITORY@COMMIT[#VERSION], in the order in which they are built
      "vllm=https://github.com/vllm-project/vllm@e03940762b43812fccd3c214bda60201cff9d16a#0.10.1",
      "vllm-ascend=https://github.com/vllm-project/vllm-ascend@7e16b4a7cdb15723c63c1c0efe58672a056eace8#0.10.1rc1",
      "mindspeed=https://github.com/Ascend/MindSpeed@1cdd0abd75e40936ad31721c092f57c695dd72c4",
      "megatron-core=https://github.com/NVIDIA/Megatron-LM@a845aa7e12b3a117e24c2352b9e3e60bad2e3a17",
      "verl=https://github.com/verl-project/verl@bcb638649a50e58494a8ddd92085ad1174f674b8",
    ])
  }
}

target "ascend-cann8_5-a2" {
  inherits = ["_ascend-cann8_5", "_a2"]
  tags     = tags("ascend-cann8.5-a2")
  args = {
    BASE = "${CANN}:8.5.0-910b-ubuntu22.04-py3.10@sha256:unknown"
  }
}

target "ascend-cann8_5-a3" {
  inherits = ["_ascend-cann8_5", "_a3"]
  tags     = tags("ascend-cann8.5-a3")
  args = {
    BASE = "${CANN}:8.5.0-a3-ubuntu22.04-py3.10@sha256:unknown"
  }
}

target "_ascend-cann9_1" {
  inherits = ["_ascend"]
  args = {
    STACK          = "ascend-cann9.1"
    PYTHON_VERSION = "3.12"
    SOURCES = join(" ", [ # and NAME/PLACE=ADDRESS#sha256:DIGEST: an archive that CMake would fetch into that folder
      "vllm=https://github.com/vllm-project/vllm@0fc695fc6d1d82e9a5ac6835ac8e4e1c83703665#0.23.0",
      "vllm-ascend=https://github.com/vllm-project/vllm-ascend@1cdb8c4db6e50f36f1fb3283b3e3dd618f6821e8#0.23.0.post1",
      # CMake has no hash of this one; it is nlohmann's own.
      "vllm-ascend/csrc/third_party/json=https://github.com/nlohmann/json/releases/download/v3.11.3/include.zip#sha256:a22461d13119ac5c78f205d3df1db13403e58ce1bb1794edc9313677313f4a9d",
      "vllm-ascend/csrc/third_party/makeself=https://gitcode.com/cann-src-third-party/makeself/releases/download/release-2.5.0-patch1.0/makeself-release-2.5.0-patch1.tar.gz#sha256:bfa730a5763cdb267904a130e02b2e48e464986909c0733ff1c96495f620369a",
      "mindspeed=https://github.com/Ascend/MindSpeed@e4772499f7eb9fa9a68919dd1eaddef00e915b2d",
      "megatron-core=https://github.com/NVIDIA/Megatron-LM@ddc0d6774783b032ddceacc5714e653651daecb9",
      "megatron-bridge=https://github.com/NVIDIA-NeMo/Megatron-Bridge@de93536e9028ecf1e4dc28608dc80f336dcdfe59",
    ])
  }
}

target "ascend-cann9_1-a2" {
  inherits = ["_ascend-cann9_1", "_a2"]
  tags     = tags("ascend-cann9.1-a2")
  args = {
    BASE = "${CANN}:9.1.0-910b-ubuntu22.04-py3.12@sha256:unknown"
  }
}

target "ascend-cann9_1-a3" {
  inherits = ["_ascend-cann9_1", "_a3"]
  tags     = tags("ascend-cann9.1-a3")
  args = {
    BASE = "${CANN}:9.1.0-a3-ubuntu22.04-py3.12@sha256:unknown"
  }
}
