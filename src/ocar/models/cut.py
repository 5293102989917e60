"""A network in two: what runs up to a layer, and what follows it.

``torch.fx`` follows the forward passes of the modules around the layer; all other modules stay
whole, whatever they do inside. The two parts use the layers of the network, not copies of them.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx, nn

from ocar.errors import ModelError


def cut(model: nn.Module, layer: str) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The part of a network up to a layer, included, and the part that follows.

    The network has one input. The layer is named as in ``model.named_modules()``.

    Raises:
        ModelError: There is no such layer, or what follows also needs what came before.
    """
    _check_name(model, layer)
    front, rest = _Tracer(layer).parts(model, training=False)
    _, training = _Tracer(layer).parts(model, training=True)
    if str(rest) != str(training):
        raise ModelError(
            f"{_cannot(model, layer)} its forward pass reads self.training, which a cut would fix. "
            "Let a module such as nn.Dropout read it."
        )
    return fx.GraphModule(model, front), fx.GraphModule(model, rest)


def _check_name(model: nn.Module, layer: str) -> None:
    """Raise if there is no such layer, with the layers where the name goes wrong."""
    found, prefix = model, ""
    for part in layer.split("."):
        children = dict(found.named_children())
        if part not in children:
            names = ", ".join(prefix + name for name in children)
            allowed = f"Must be one of {names}, or a layer inside."
            raise ModelError(
                f"{type(model).__name__} has no layer {layer!r}. "
                + (allowed if names else f"{prefix.removesuffix('.')!r} has no layers inside.")
            )
        found, prefix = children[part], f"{prefix}{part}."


def _cannot(model: nn.Module, layer: str) -> str:
    return f"{type(model).__name__} cannot be cut after {layer!r}:"


class _Tracer(fx.Tracer):
    """Looks into the modules around a layer only."""

    def __init__(self, layer: str) -> None:
        super().__init__()
        self.layer = layer

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module stays whole."""
        return not self.layer.startswith(f"{module_qualified_name}.")

    def parts(self, model: nn.Module, *, training: bool) -> tuple[fx.Graph, fx.Graph]:
        """The graphs before and after the layer, in train or in eval mode."""
        graph = self._trace_in_mode(model, training=training)
        whole = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        whole.output(whole.graph_copy(graph, copies))
        calls = [n for n in graph.nodes if n.op == "call_module" and n.target == self.layer]
        if len(calls) != 1:
            raise ModelError(
                f"{_cannot(model, self.layer)} it is called {len(calls)} times in a forward pass. "
                "Must be once."
            )
        _end_at(whole, copies[calls[0]])
        self._begin_after(graph, calls[0], model)
        return whole, graph

    def _trace_in_mode(self, model: nn.Module, *, training: bool) -> fx.Graph:
        before = {module: module.training for module in model.modules()}
        try:
            return self.trace(model.train(training))
        except Exception as error:  # what a forward pass of placeholders raises can be anything
            raise ModelError(
                f"{_cannot(model, self.layer)} torch.fx cannot follow the modules around it: "
                f"{error} Cut it by hand: LatentReplay(backbone, rest)."
            ) from error
        finally:
            for module, mode in before.items():
                module.training = mode

    def _begin_after(self, graph: fx.Graph, call: fx.Node, model: nn.Module) -> None:
        """Make the output of a call the input of a graph."""
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        with graph.inserting_before(inputs[0]):
            # A copy: what follows may be a ReLU that works in place, and features are stored.
            features = graph.call_method("clone", (graph.placeholder("features"),))
        call.replace_all_uses_with(features)
        _erase_unused(graph)
        for node in [node for node in graph.nodes if _is_batch_size(node, inputs)]:
            node.replace_all_uses_with(_batch_size(graph, features, before=node))
        _erase_unused(graph)
        for node in inputs:
            if node.users:
                raise ModelError(
                    f"{_cannot(model, self.layer)} what follows also uses the network's input or "
                    f"what was computed before, by {next(iter(node.users)).name!r}. Cut where one "
                    "tensor passes."
                )
            graph.erase_node(node)
        graph.lint()


def _end_at(graph: fx.Graph, node: fx.Node) -> None:
    """Make a node the output of a graph."""
    (output,) = [n for n in graph.nodes if n.op == "output"]
    output.args = (node,)
    _erase_unused(graph)
    graph.lint()


def _erase_unused(graph: fx.Graph) -> None:
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)


def _is_batch_size(node: fx.Node, inputs: list[fx.Node]) -> bool:
    """Whether a node is ``x.size(0)`` or ``x.shape[0]`` of an input x."""
    source: Any = node.args[0] if node.args else None
    if node.op == "call_method" and node.target == "size":
        return source in inputs and node.args[1:] == (0,)
    if node.op != "call_function" or node.target is not operator.getitem or node.args[1] != 0:
        return False
    read = (source.op, source.target, source.args[1:])
    shapes = (("call_function", getattr, ("shape",)), ("call_method", "size", ()))
    return read in shapes and source.args[0] in inputs


def _batch_size(graph: fx.Graph, features: fx.Node, *, before: fx.Node) -> fx.Node:
    with graph.inserting_before(before):
        return graph.call_method("size", (features, 0))
