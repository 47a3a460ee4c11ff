# What `docker buildx bake` builds, from docker/stacks.yaml by `python -m launch.images.bake`: do not edit.
#   docker buildx bake -f docker/docker-bake.hcl TARGET ..      from the repository's root; `run.sh images build` also
#                                                               checks what came out, and names it
# A base whose digest says `unknown` is refused at once: the command in it, on a connected machine, fills it in.

variable "VERSION" {
  default = "unknown"
}

variable "REVISION" {
  default = "unknown"
}

group "default" {
  targets = ["cpu"]
}

group "ascend" {
  targets = ["ascend-cann8_5-a2", "ascend-cann8_5-a3", "ascend-cann9_1-a2", "ascend-cann9_1-a3"]
}

group "all" {
  targets = ["cpu", "ascend-cann8_5-a2", "ascend-cann8_5-a3", "ascend-cann9_1-a2", "ascend-cann9_1-a3", "cuda13"]
}

target "cpu" {
  dockerfile = "docker/Dockerfile.cpu"
  tags = ["ascend-quant:cpu"]
  args = {
    BASE     = "docker.io/library/debian:bookworm-slim@sha256:7c7b2c966bc9ee8cedfeef67e0e279108992c77681fa595db4a9d65c06ccc587"
    STACK    = "cpu"
    VERSION  = VERSION
    REVISION = REVISION
  }
}

target "ascend-cann8_5-a2" {
  dockerfile = "docker/Dockerfile.ascend"
  tags = ["ascend-quant:ascend-cann8.5-a2"]
  args = {
    BASE                   = "quay.io/ascend/cann:8.5.0-910b-ubuntu22.04-py3.10@sha256:unknown-run-python-m-launch-images-lock-ascend-cann8.5"
    STACK                  = "ascend-cann8.5"
    CHIP                   = "A2"
    APT_SNAPSHOT           = "20261115T000000Z"
    PYTHON_VERSION         = "3.10"
    SOC_VERSION            = "ascend910b1"
    VLLM_TARGET_DEVICE     = "empty"
    COMPILE_CUSTOM_KERNELS = "1"
    SOURCES                = "vllm=https://github.com/vllm-project/vllm@e03940762b43812fccd3c214bda60201cff9d16a#0.10.1 vllm-ascend=https://github.com/vllm-project/vllm-ascend@7e16b4a7cdb15723c63c1c0efe58672a056eace8#0.10.1rc1 mindspeed=https://github.com/Ascend/MindSpeed@1cdd0abd75e40936ad31721c092f57c695dd72c4 megatron-core=https://github.com/NVIDIA/Megatron-LM@a845aa7e12b3a117e24c2352b9e3e60bad2e3a17 verl=https://github.com/verl-project/verl@bcb638649a50e58494a8ddd92085ad1174f674b8"
    VERSION                = VERSION
    REVISION               = REVISION
  }
}

target "ascend-cann8_5-a3" {
  dockerfile = "docker/Dockerfile.ascend"
  tags = ["ascend-quant:ascend-cann8.5-a3"]
  args = {
    BASE                   = "quay.io/ascend/cann:8.5.0-a3-ubuntu22.04-py3.10@sha256:unknown-run-python-m-launch-images-lock-ascend-cann8.5"
    STACK                  = "ascend-cann8.5"
    CHIP                   = "A3"
    APT_SNAPSHOT           = "20261115T000000Z"
    PYTHON_VERSION         = "3.10"
    SOC_VERSION            = "ascend910_9391"
    VLLM_TARGET_DEVICE     = "empty"
    COMPILE_CUSTOM_KERNELS = "1"
    SOURCES                = "vllm=https://github.com/vllm-project/vllm@e03940762b43812fccd3c214bda60201cff9d16a#0.10.1 vllm-ascend=https://github.com/vllm-project/vllm-ascend@7e16b4a7cdb15723c63c1c0efe58672a056eace8#0.10.1rc1 mindspeed=https://github.com/Ascend/MindSpeed@1cdd0abd75e40936ad31721c092f57c695dd72c4 megatron-core=https://github.com/NVIDIA/Megatron-LM@a845aa7e12b3a117e24c2352b9e3e60bad2e3a17 verl=https://github.com/verl-project/verl@bcb638649a50e58494a8ddd92085ad1174f674b8"
    VERSION                = VERSION
    REVISION               = REVISION
  }
}

target "ascend-cann9_1-a2" {
  dockerfile = "docker/Dockerfile.ascend"
  tags = ["ascend-quant:ascend-cann9.1-a2"]
  args = {
    BASE                   = "quay.io/ascend/cann:9.1.0-910b-ubuntu22.04-py3.12@sha256:unknown-run-python-m-launch-images-lock-ascend-cann9.1"
    STACK                  = "ascend-cann9.1"
    CHIP                   = "A2"
    APT_SNAPSHOT           = "20261115T000000Z"
    PYTHON_VERSION         = "3.12"
    SOC_VERSION            = "ascend910b1"
    VLLM_TARGET_DEVICE     = "empty"
    COMPILE_CUSTOM_KERNELS = "1"
    SOURCES                = "vllm=https://github.com/vllm-project/vllm@0fc695fc6d1d82e9a5ac6835ac8e4e1c83703665#0.23.0 vllm-ascend=https://github.com/vllm-project/vllm-ascend@1cdb8c4db6e50f36f1fb3283b3e3dd618f6821e8#0.23.0.post1 vllm-ascend/csrc/third_party/json=https://github.com/nlohmann/json/releases/download/v3.11.3/include.zip#sha256:a22461d13119ac5c78f205d3df1db13403e58ce1bb1794edc9313677313f4a9d vllm-ascend/csrc/third_party/makeself=https://gitcode.com/cann-src-third-party/makeself/releases/download/release-2.5.0-patch1.0/makeself-release-2.5.0-patch1.tar.gz#sha256:bfa730a5763cdb267904a130e02b2e48e464986909c0733ff1c96495f620369a mindspeed=https://github.com/Ascend/MindSpeed@e4772499f7eb9fa9a68919dd1eaddef00e915b2d megatron-core=https://github.com/NVIDIA/Megatron-LM@ddc0d6774783b032ddceacc5714e653651daecb9 megatron-bridge=https://github.com/NVIDIA-NeMo/Megatron-Bridge@de93536e9028ecf1e4dc28608dc80f336dcdfe59"
    VERSION                = VERSION
    REVISION               = REVISION
  }
}

target "ascend-cann9_1-a3" {
  dockerfile = "docker/Dockerfile.ascend"
  tags = ["ascend-quant:ascend-cann9.1-a3"]
  args = {
    BASE                   = "quay.io/ascend/cann:9.1.0-a3-ubuntu22.04-py3.12@sha256:unknown-run-python-m-launch-images-lock-ascend-cann9.1"
    STACK                  = "ascend-cann9.1"
    CHIP                   = "A3"
    APT_SNAPSHOT           = "20261115T000000Z"
    PYTHON_VERSION         = "3.12"
    SOC_VERSION            = "ascend910_9391"
    VLLM_TARGET_DEVICE     = "empty"
    COMPILE_CUSTOM_KERNELS = "1"
    SOURCES                = "vllm=https://github.com/vllm-project/vllm@0fc695fc6d1d82e9a5ac6835ac8e4e1c83703665#0.23.0 vllm-ascend=https://github.com/vllm-project/vllm-ascend@1cdb8c4db6e50f36f1fb3283b3e3dd618f6821e8#0.23.0.post1 vllm-ascend/csrc/third_party/json=https://github.com/nlohmann/json/releases/download/v3.11.3/include.zip#sha256:a22461d13119ac5c78f205d3df1db13403e58ce1bb1794edc9313677313f4a9d vllm-ascend/csrc/third_party/makeself=https://gitcode.com/cann-src-third-party/makeself/releases/download/release-2.5.0-patch1.0/makeself-release-2.5.0-patch1.tar.gz#sha256:bfa730a5763cdb267904a130e02b2e48e464986909c0733ff1c96495f620369a mindspeed=https://github.com/Ascend/MindSpeed@e4772499f7eb9fa9a68919dd1eaddef00e915b2d megatron-core=https://github.com/NVIDIA/Megatron-LM@ddc0d6774783b032ddceacc5714e653651daecb9 megatron-bridge=https://github.com/NVIDIA-NeMo/Megatron-Bridge@de93536e9028ecf1e4dc28608dc80f336dcdfe59"
    VERSION                = VERSION
    REVISION               = REVISION
  }
}

target "cuda13" {
  dockerfile = "docker/Dockerfile.cuda"
  tags = ["ascend-quant:cuda13"]
  args = {
    BASE           = "docker.io/nvidia/cuda:13.0.2-devel-ubuntu24.04@sha256:5dc1bca23d05bd37b011be68ec470c03b403a5da07ec3a86e41af9470e9d0cc6"
    STACK          = "cuda13"
    APT_SNAPSHOT   = "20261115T000000Z"
    PYTHON_VERSION = "3.12"
    VERSION        = VERSION
    REVISION       = REVISION
  }
}
