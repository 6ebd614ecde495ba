// Package controller runs a Deployment for each Memcached, as a kubebuilder project does it: read, finalizer, create or update, status.
package controller

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	cachev1alpha1 "operetta.dev/tests/moving/api/v1alpha1"
)

const (
	finalizer = "cache.example.com/finalizer"
	image     = "memcached:1.4.36-alpine"
)

// MemcachedReconciler reconciles a Memcached.
type MemcachedReconciler struct {
	client.Client
	Scheme *runtime.Scheme
}

// Reconcile brings the Deployment to where the object wants it.
func (r *MemcachedReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	memcached := &cachev1alpha1.Memcached{}
	if err := r.Get(ctx, req.NamespacedName, memcached); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !memcached.DeletionTimestamp.IsZero() {
		if controllerutil.RemoveFinalizer(memcached, finalizer) {
			return ctrl.Result{}, r.Update(ctx, memcached)
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(memcached, finalizer) {
		if err := r.Update(ctx, memcached); err != nil {
			return ctrl.Result{}, err
		}
	}

	found := &appsv1.Deployment{}
	err := r.Get(ctx, req.NamespacedName, found)
	if apierrors.IsNotFound(err) {
		deployment, err := r.deploymentFor(memcached)
		if err != nil {
			return ctrl.Result{}, err
		}
		return ctrl.Result{RequeueAfter: time.Minute}, r.Create(ctx, deployment)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if *found.Spec.Replicas != memcached.Spec.Size {
		found.Spec.Replicas = &memcached.Spec.Size
		return ctrl.Result{}, r.Update(ctx, found)
	}

	message := "Deployment for custom resource (%s) with %d replicas created successfully"
	changed := meta.SetStatusCondition(&memcached.Status.Conditions, metav1.Condition{
		Type: "Available", Status: metav1.ConditionTrue, Reason: "Reconciling",
		Message: fmt.Sprintf(message, memcached.Name, memcached.Spec.Size),
	})
	if changed {
		return ctrl.Result{}, r.Status().Update(ctx, memcached)
	}
	return ctrl.Result{}, nil
}

func (r *MemcachedReconciler) deploymentFor(memcached *cachev1alpha1.Memcached) (*appsv1.Deployment, error) {
	selector := map[string]string{
		"app.kubernetes.io/name":     "memcached",
		"app.kubernetes.io/instance": memcached.Name,
	}
	labels := func(more ...string) map[string]string {
		labels := map[string]string{
			"app.kubernetes.io/part-of":    "memcached-operator",
			"app.kubernetes.io/managed-by": "memcached-operator",
			"app.kubernetes.io/version":    "1.4.36-alpine",
		}
		for name, value := range selector {
			labels[name] = value
		}
		for i := 0; i < len(more); i += 2 {
			labels[more[i]] = more[i+1]
		}
		return labels
	}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Name:      memcached.Name,
			Namespace: memcached.Namespace,
			// A label that scaffolds used to write, and that the plugin does not.
			Labels: labels("app.kubernetes.io/created-by", "controller-manager"),
		},
		Spec: appsv1.DeploymentSpec{
			Replicas: &memcached.Spec.Size,
			Selector: &metav1.LabelSelector{MatchLabels: selector},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels()},
				Spec: corev1.PodSpec{
					SecurityContext: &corev1.PodSecurityContext{
						RunAsNonRoot:   ptr.To(true),
						SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
					},
					Containers: []corev1.Container{{
						Name:            "memcached",
						Image:           image,
						ImagePullPolicy: corev1.PullIfNotPresent,
						Command:         []string{"memcached", "-m=64", "-o", "modern", "-v"},
						Ports:           []corev1.ContainerPort{{Name: "memcached", ContainerPort: memcached.Spec.ContainerPort}},
						SecurityContext: &corev1.SecurityContext{
							RunAsNonRoot:             ptr.To(true),
							RunAsUser:                ptr.To[int64](1001),
							AllowPrivilegeEscalation: ptr.To(false),
							Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
						},
					}},
				},
			},
		},
	}
	return deployment, ctrl.SetControllerReference(memcached, deployment, r.Scheme)
}

// SetupWithManager says what wakes it.
func (r *MemcachedReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&cachev1alpha1.Memcached{}).
		Owns(&appsv1.Deployment{}).
		Complete(r)
}
