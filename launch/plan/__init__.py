"""Plans: what a launch does on each host, made from a recipe and an inventory before anything is started."""

from launch.plan.fields import Job, NodePlan, Plan

__all__ = ["Job", "NodePlan", "Plan"]
