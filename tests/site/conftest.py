from tests.workflow.conftest import finished_toy

__all__ = ["finished_toy"]
