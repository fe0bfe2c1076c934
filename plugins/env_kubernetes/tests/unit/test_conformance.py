"""The kit on what this distribution registers."""

import pytest

from elastic_env_kubernetes.pod import Kubernetes
from elastic_plugin_kit import CommandConformance, EnvironmentConformance


class TestKubernetes(EnvironmentConformance):
    shown_by = "JOB_COMPLETION_INDEX"

    @pytest.fixture
    def make_environment(self):
        return Kubernetes

    @pytest.fixture
    def variables(self):
        return {
            "JOB_COMPLETION_INDEX": "1",
            "HOSTNAME": "bert-7-1",
            "POD_NAME": "bert-7-1-x8kd2",
            "POD_IP": "127.0.0.1",
            "ELASTIC_JOB_ID": "5f0c3a1e-77aa-4f0e-9a3b-0c4a53b1f001",
            "ELASTIC_K8S_RUN": "bert-7",
            "ELASTIC_K8S_NNODES": "2:4",
            "ELASTIC_K8S_SPARES": "1",
            "ELASTIC_K8S_FIRST_POD": "bert-7-0.bert-7:29400",
            "ELASTIC_K8S_GRACE_PERIOD": "70",
            "ELASTIC_K8S_GPUS": "8",
        }


class TestK8s(CommandConformance):
    entry_point = "elastic_env_kubernetes.command:command"
