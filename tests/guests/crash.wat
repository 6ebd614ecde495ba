;; An operator without a compiler: what its manifest does and what its reconcile does are filled in by a test.
;;
;; MANIFEST: the document, as the text of a data segment. START: the body of the core module's start function. ON-MANIFEST: runs before the document is returned.
;; MORE-IMPORTS, MORE-CORE-IMPORTS and MORE-INSTANCES: further imports of the component, of its module, and what connects them.
;; MORE-AFTER: what the component has beside all that, which may use the lifted `$described` and the module's table.
;; ON-RECONCILE: runs before the answer, which is `await-change`; `$attempt` is the request's, so that one component misbehaves in many ways.
(component
  (type $types (instance
    (type $key' (record (field "namespace" (option string)) (field "name" string)))
    (export "object-key" (type $key (eq $key')))
    (type $cause' (variant (case "changed") (case "resync") (case "requeued") (case "retried") (case "other" string)))
    (export "cause" (type $cause (eq $cause')))
    (type $request' (record (field "controller" string) (field "key" $key) (field "object" (option string)) (field "attempt" u32) (field "cause" $cause)))
    (export "request" (type (eq $request')))
    (type $detail' (record (field "code" string) (field "message" string)))
    (export "detail" (type $detail (eq $detail')))
    (type $outcome' (variant (case "await-change") (case "requeue-after" u64) (case "other" $detail)))
    (export "outcome" (type (eq $outcome')))
    (type $failure' (variant (case "retryable" string) (case "terminal" string) (case "other" $detail)))
    (export "failure" (type (eq $failure')))))
  (import "operetta:operator/types@VERSION" (instance $types (type $types)))
  (alias export $types "request" (type $request))
  (alias export $types "outcome" (type $outcome))
  (alias export $types "failure" (type $failure))

  (core module $libc
    (memory (export "memory") MEMORY)
    (global $next (mut i32) (i32.const 32768))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (global.set $next (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
      (global.get $next)
      (global.set $next (i32.add (global.get $next) (local.get 3)))))
  (core instance $libc (instantiate $libc))
  (alias core export $libc "memory" (core memory $memory))
  (alias core export $libc "realloc" (core func $realloc))

  MORE-IMPORTS

  (core module $m
    (import "libc" "memory" (memory 1))
    MORE-CORE-IMPORTS
    (table $table (export "table") 10 funcref)
    (func $recurse (param i32) (result i32) (i32.add (call $recurse (local.get 0)) (i32.const 1)))
    (func $start START)
    (start $start)
    (func $manifest (export "manifest") (result i32)
      ON-MANIFEST
      (i32.store (i32.const 0) (i32.const 64))
      (i32.store (i32.const 4) (i32.const LENGTH))
      (i32.const 0))
    (func $reconcile (export "reconcile")
      (param $controller i32) (param i32) (param i32 i32 i32) (param i32 i32) (param $object i32) (param i32 i32) (param $attempt i32) (param i32 i32 i32)
      (result i32)
      (local $i i32)
      ON-RECONCILE
      (memory.fill (i32.const 0) (i32.const 0) (i32.const 48))
      (i32.const 0))
    (data (i32.const 64) "MANIFEST"))

  (core instance $i (instantiate $m (with "libc" (instance $libc)) MORE-INSTANCES))
  (func $described (export "manifest") (result string)
    (canon lift (core func $i "manifest") (memory $memory) (realloc $realloc)))
  (type $reconcile (func async (param "request" $request) (result (result $outcome (error $failure)))))
  (func (export "reconcile") (type $reconcile)
    (canon lift (core func $i "reconcile") (memory $memory) (realloc $realloc)))

  MORE-AFTER)
