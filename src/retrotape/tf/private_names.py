"""Every private name of TensorFlow and Keras that retrotape uses, and what for.

`compatibility` checks the table before anything records, and a test compares it with the source. A line reads
`module:Class.name(parameters)`; modules are those of `tensorflow.python` unless they begin with `tensorflow`.
Parameters are checked where they are given: those of a hook, which TensorFlow itself calls, must be all there are;
those of what we call must come first, and `...` leaves the rest open.
"""

from __future__ import annotations

HOOKED = {
    "eager.execute:execute(op_name, num_outputs, inputs, attrs, ctx, name)": "ops on the slow path",
    "eager.execute:quick_execute(op_name, num_outputs, inputs, attrs, ctx, name)": "the same, without callbacks",
    "eager.execute:execute_with_callbacks(op_name, num_outputs, inputs, attrs, ctx, name)": "the same, with callbacks",
    "eager.execute:execute_with_cancellation(op_name, num_outputs, inputs, attrs, ctx, ...)": "calls of functions",
    "pywrap_tfe:TFE_Py_FastPathExecute": "variables given straight to an op are read without a callback",
    "pywrap_tfe:TFE_ToDlpackCapsule": "where other libraries read a value",
    "eager.record:record_operation(op_type, output_tensors, input_tensors, backward_function, forward_function)": (
        "custom gradients and function calls give their backward function here"
    ),
    "ops.resource_variable_ops:variable_accessed(variable)": "which variables are read",
    "ops.array_ops:stop_gradient(input, name)": "`tf.nn.moments` means it for first derivatives only",
    "ops.custom_gradient:_eager_mode_decorator(f, args, kwargs)": "where the body of a custom gradient begins and ends",
    "eager.polymorphic_function.concrete_function:ConcreteFunction._call_flat(self, tensor_inputs, captured_inputs)": (
        "calls of a `tf.function`"
    ),
    "ops.script_ops:EagerFunc.__call__(self, device, token, args)": "inputs and outputs of a `tf.py_function`",
    "ops.script_ops:py_func_common(func, inp, ...)": "what a `tf.numpy_function` in eager code reads",
    "framework.ops:_EagerTensorBase._numpy(self)": "where Python reads a value",
    "framework.ops:get_gradient_function(op)": "`tf.recompute_grad` around random ops would draw other values",
    "distribute.mirrored_run:_MirroredReplicaThread.record_thread_local_eager_context_state(self)": (
        "a replica's thread records for the tapes that are open where `strategy.run` was called"
    ),
    "distribute.mirrored_run:_MirroredReplicaThread.restore_thread_local_eager_context_state(self)": "the same",
    "distribute.mirrored_run:_MirroredReplicaContext._merge_call(self, fn, args, kwargs)": "where replicas synchronize",
    "distribute.distribute_lib:ReplicaContextBase.all_reduce(self, reduce_op, value, options)": "recorded as a sum",
    "distribute.distribute_lib:ReplicaContext.all_gather(self, value, axis, options)": "recorded as a concatenation",
    "distribute.cross_device_ops:CollectiveAllReduce._all_reduce_per_replica_values"
    "(self, reduce_op, per_replica_values, options)": "an all-reduce that runs on threads of a pool",
    "distribute.cross_device_ops:CollectiveAllReduce._batch_all_gather(self, per_replica_values, axis, options)": (
        "a gather that runs in a function of its own"
    ),
    "distribute.coordinator.cluster_coordinator:ClusterCoordinator.schedule(self, fn, args, kwargs)": (
        "what workers run is not recorded"
    ),
}

_FUNCTION = "eager.polymorphic_function.concrete_function:ConcreteFunction"
CALLED = {
    # eager execution
    "eager.context:context()": "the context that ops run in",
    "eager.context:context_safe()": "the same, if there is one",
    "eager.context:Context._initialized": "whether there are threads that a forked process does not have",
    "eager.context:get_function_def(name)": "what a function computes",
    "eager.context:Context.add_function_def(self, fdef)": "a compiled query is a function, built without tracing",
    "eager.context:Context.remove_function(self, name)": "the same, when it is dropped",
    "eager.context:Context.has_function(self, name)": "the same",
    "eager.context:Context.ensure_initialized(self)": "the same, before the first op",
    "eager.context:Context._seed": "eager draws that leave those of the training as they are",
    "eager.context:Context._rng": "the same",
    "eager.context:Context.op_callbacks": "callbacks run on the slow path",
    "eager.context:Context._thread_local_data": "every eager op is recorded; an interrupt leaves no callback behind",
    "pywrap_tfe:EagerContextThreadLocalData.op_callbacks": "the same",
    "ops.summary_ops_v2:_summary_state": "where a step that is played back writes summaries",
    "eager.core:_FallbackException": "says that the fast path has not run an op",
    "eager.execute:must_record_gradient()": "whether a stock tape is open",
    "eager.execute:record_gradient(op_name, inputs, attrs, outputs)": "stock tapes see ops that are run by name",
    "framework.ops:EagerTensor._id": "an identity that is never reused",
    "framework.ops:SymbolicTensor._id": "the same, in a graph",
    "framework.ops:EagerTensor._shape_tuple": "cheap types",
    "framework.ops:EagerTensor._num_elements": "how much the events that wait hold",
    "framework.ops:EagerTensor._datatype_enum": "the same",
    "framework.ops:EagerTensor._handle_data": "dtype and shape of the variable behind a handle",
    "framework.ops:EagerTensor.backing_device": "where a value lies in memory",
    "pywrap_tfe:TFE_Py_UID": "identities for values that are no tensors",
    "framework.op_def_registry:get(name)": "what inputs and attributes an op has",
    "framework.op_def_library:apply_op(op_type_name, ...)": "ops by name in a graph",
    "tensorflow.core.framework.op_def_pb2:OpList": "definitions of ops in a file",
    # stock tapes and forward accumulators
    "eager.backprop:GradientTape(persistent, watch_accessed_variables)": "the stock tape, also under `rt.install`",
    "eager.backprop:GradientTape._tape": "watches what it should not record",
    "eager.tape:Tape._tape": "the same",
    "pywrap_tfe:TFE_Py_TapeWatch": "the same",
    "pywrap_tfe:TFE_Py_TapeSetNew": "a stock tape around a call, which no interrupt leaves behind",
    "pywrap_tfe:TFE_Py_TapeSetRemove": "the same",
    "pywrap_tfe:TFE_Py_TapeSetIsStopped": "stock tapes do not see what is recomputed",
    "pywrap_tfe:TFE_Py_TapeSetStopOnThread": "the same",
    "pywrap_tfe:TFE_Py_TapeSetRestartOnThread": "the same",
    "pywrap_tfe:TFE_Py_TapeSetRecordOperation": "backward functions of what we compute, for stock tapes",
    "pywrap_tfe:TFE_Py_TapeVariableAccessed": "stock tapes and custom gradients see the reads that we make",
    "pywrap_tfe:TFE_Py_VariableWatcherVariableAccessed": "the same",
    "eager.record:stop_recording()": "stock tapes do not see what is recomputed",
    "eager.record:should_record_backprop(tensors)": "whether a stock tape watches a tensor",
    "eager.record:record_operation_backprop_only(op_type, output_tensors, input_tensors, backward_function)": (
        "copies that no accumulator sees"
    ),
    "eager.record:record_operation_forwardprop_only"
    "(op_type, output_tensors, input_tensors, backward_function, forwardprop_output_indices)": "tangents of a function",
    "pywrap_tfe:TFE_Py_PackJVPs": "the tangents of what a function is called with",
    "pywrap_tfe:TFE_Py_RegisterJVPFunction": "an op is recorded before its tangents are computed",
    "eager.forwardprop:_jvp_dispatch(op_name, attr_tuple, inputs, outputs, tangents, use_batch)": "the same",
    # gradients
    "framework.ops:gradient_registry": "the gradient functions",
    "framework.registry:Registry.lookup(self, name)": "the same",
    "framework.registry:Registry.list(self)": "the same",
    "eager.backprop_util:IsTrainable(tensor_or_dtype)": "dtypes that have derivatives",
    "eager.backprop_util:AggregateIndexedSlicesGradients(grads)": "sums as the stock tape makes them",
    "ops.gradients_util:PossibleTapeGradientTypes(tensors)": "the gradient of a function is built before it runs",
    "ops.gradients_util:POSSIBLE_GRADIENT_TYPES_NONE": "the same",
    "ops.custom_gradient:recompute_grad(f)": "known by where its functions are defined",
    "framework.composite_tensor_gradient:get_flat_tensors_for_gradients(xs)": "ragged and sparse values",
    "framework.composite_tensor_gradient:replace_flat_tensors_for_gradients(xs, flat_grads)": "the same",
    "tensorflow:__internal__.CompositeTensor": "the same",
    "tensorflow:__internal__.autograph.tf_convert(f, ctx, ...)": "a loss with Python control flow in `rt.accumulate`",
    "tensorflow:__internal__.autograph.control_status_ctx()": "the same",
    "framework.ops:Operation._gradient_function": "a gradient of an operation's own",
    # functions
    f"{_FUNCTION}(atomic_fn, ...)": "a gradient as a function",
    f"{_FUNCTION}._func_graph": "what a function computes",
    f"{_FUNCTION}._inference_function": "the name under which the runtime knows it",
    f"{_FUNCTION}._select_forward_and_backward_functions(self, args, possible_gradient_type, executing_eagerly)": (
        "a gradient that cannot be built does not stop the program"
    ),
    "eager.polymorphic_function.concrete_function:_ForwardBackwardCall.forward(self)": "the same",
    "eager.polymorphic_function.concrete_function:_ForwardBackwardCall._functions": "what a gradient captures",
    "eager.polymorphic_function.concrete_function:_TapeGradientFunctions._backward": "the same",
    f"{_FUNCTION}._first_order_tape_functions": "gradients that keep random draws, separate from those of stock tapes",
    f"{_FUNCTION}._higher_order_tape_functions": "the same",
    f"{_FUNCTION}.captured_inputs": "what a function reads besides its arguments",
    f"{_FUNCTION}.function_type": "the types of its outputs",
    "tensorflow.core.function.polymorphism.function_type:FunctionType.flat_outputs": "the same",
    "tensorflow.core.function.polymorphism.function_type:FunctionType.pack_output(self, flat_values)": "its result",
    "eager.polymorphic_function.atomic_function:from_func_graph(name, graph, attrs, ...)": "a graph as a function",
    "eager.polymorphic_function.polymorphic_function:Function._omit_frequent_tracing_warning": "for our own functions",
    "framework.func_graph:FuncGraph(name, ...)": "graphs of gradients",
    "framework.func_graph:FuncGraph.captures": "what a graph captures",
    "framework.func_graph:FuncGraph.external_captures": "the same",
    "framework.func_graph:FuncGraph.internal_captures": "the same",
    "framework.func_graph:FuncGraph.inputs": "inputs of a graph",
    "framework.func_graph:FuncGraph.outputs": "outputs of a graph",
    "framework.func_graph:FuncGraph.structured_outputs": "the same",
    "framework.func_graph:FuncGraph.variables": "which variables a function reads",
    "framework.ops:Graph._is_function(self, name)": "functions that a graph calls",
    "framework.ops:Graph._get_function(self, name)": "the same",
    "framework.ops:uid()": "names of functions",
    "framework.auto_control_deps_utils:get_read_only_resource_input_indices_graph(func_graph)": "what may be written",
    "framework.auto_control_deps_utils:_get_read_only_resource_input_indices_op(op)": "the same",
    "ops.handle_data_util:get_resource_handle_data(graph_op)": "the variable behind a handle in a graph",
    "ops.handle_data_util:copy_handle_data(source_t, target_t)": "the same",
    # variables
    "ops.resource_variable_ops:ResourceVariable": "the variables that the fast path of an op reads itself",
    "ops.resource_variable_ops:BaseResourceVariable.handle": "which variable an op reads",
    "ops.resource_variable_ops:BaseResourceVariable._handle": "which variable of a strategy has it as a part",
    "distribute.values:DistributedVariable._distributed_container": "the same",
    "distribute.values:DistributedVariable._values": "the parts of a variable, one for each device",
    "distribute.values:SyncOnReadVariable": "variables that differ between replicas",
    "distribute.distribute_lib:ReplicaContextBase._replica_id_in_sync_group": "the replica of a custom gradient",
    "distribute.values:Mirrored": "what a reduction returns: a copy for each device",
    "distribute.ps_values:AggregatingVariable._v": "the variable inside one of a central storage",
    "distribute.cross_device_ops:CollectiveAllReduce._group_size": "the number of replicas",
    # workers
    "distribute.values:DistributedValues._values": "the values of all replicas of this worker",
    "distribute.collective_all_reduce_strategy:CollectiveAllReduceExtended._id_in_cluster": "which worker this is",
    "distribute.collective_all_reduce_strategy:CollectiveAllReduceExtended._num_workers": "how many there are",
    "eager.context:Context.set_config_key_value(self, key, value)": "messages to other workers",
    "eager.context:Context.get_config_key_value(self, key, timeout_in_ms)": "the same",
    "eager.context:Context.delete_config_key_value(self, key)": "the same",
    "eager.context:Context.get_task_states(self, job_configs)": "which workers have failed",
    "distribute.cross_device_ops:CollectiveAllReduce._devices": "their devices, which decide the order of a gather",
    "eager.context:Context._collective_ops_server_def": "whether replicas run in other processes",
}

BACKEND = "keras:backend.backend()"
# Keras is checked when a program has imported it. It is replaced too: `Variable.value` and `Layer.__call__`.
KERAS = {
    "keras:Variable.value": "every read of a Keras variable passes it",
    "keras:Variable._value": "the `tf.Variable` inside",
    "keras:Layer.__call__(self, ...)": "where a layer begins and ends",
    "keras:Layer.variables": "who owns a variable that a function reads",
    BACKEND: "whether Keras runs on TensorFlow",
    "keras:optimizers.Optimizer._trainable_variables": "which variables an optimizer changes",
    "keras:optimizers.Optimizer.built": "whether it knows them yet",
    "keras:optimizers.Optimizer.build(self, variables)": "the same",
    "keras:optimizers.Optimizer.apply(self, grads, trainable_variables)": "one step",
    "keras:Model._compile_loss": "the losses of `compile`, one by one",
    "keras:Model._aggregate_additional_loss(self, loss)": "the same, of those that layers add",
    "keras:Model._loss_tracker": "the mean that `fit` shows",
    "keras:Model._call_has_training_arg": "whether a model takes `training=`",
    "keras.src.backend.common.stateless_scope:in_stateless_scope()": "whether Keras assigns to variables",
    "keras.src.trainers.compile_utils:CompileLoss._flat_losses": "the losses of `compile`, one by one",
}
# Checked when a callback is to observe `fit`.
FIT = {
    "keras:Model._autoconvert_optionals(self, step_func)": "every batch passes through what it returns, outside of XLA",
    "keras:Model.make_train_function(self, force)": "builds the function that `fit` calls",
    "keras:Model.compute_loss(self, x, y, y_pred, sample_weight, ...)": "which tensor is the loss",
}
